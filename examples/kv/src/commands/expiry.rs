//! Commands on the expiry of values.

use std::borrow::Cow;

use super::c_string;
use crate::call::{Call, Fault, Outcome};
use crate::engine::Expiry;
use crate::server::Kv;
use crate::store::{Change, now_millis};

/// The error for an impossible time, which `command` got.
pub(super) fn invalid_time(command: &str) -> Fault {
    Fault::said(format!("ERR invalid expire time in '{command}' command"))
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`
pub fn expire(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    set_expiry(kv, call, "expire", 1000, now_millis())
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`
pub fn pexpire(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    set_expiry(kv, call, "pexpire", 1, now_millis())
}

/// `EXPIREAT key seconds [NX | XX | GT | LT]`
pub fn expireat(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    set_expiry(kv, call, "expireat", 1000, 0)
}

/// `PEXPIREAT key milliseconds [NX | XX | GT | LT]`
pub fn pexpireat(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    set_expiry(kv, call, "pexpireat", 1, 0)
}

fn set_expiry(kv: &Kv, call: &mut Call<'_>, command: &str, unit: i64, base: i64) -> Outcome {
    let key = call.argument()?;
    // As in Redis, a wrong option is reported before a wrong number.
    let condition = Condition::read(call.arguments.clone().skip(1))?;
    let at = call
        .integer_argument()?
        .checked_mul(unit)
        .and_then(|millis| millis.checked_add(base))
        .ok_or_else(|| invalid_time(command))?;
    let set = kv.store.update(&key, |entry| match entry {
        Some(entry) if condition.allows(entry.expiry.millis(), at) => {
            if at <= now_millis() {
                return (Change::Remove, true);
            }
            let value = Cow::Owned(entry.value.to_vec());
            (Change::Put(value, Expiry::at(at)), true)
        }
        _ => (Change::Keep, false),
    })?;
    Ok(call.reply.integer(set.into())?)
}

/// The conditions for a new time.
#[derive(Default)]
struct Condition {
    only_unlimited: bool,
    only_limited: bool,
    only_later: bool,
    only_earlier: bool,
}

impl Condition {
    fn read<'a>(options: impl Iterator<Item = Cow<'a, [u8]>>) -> Result<Self, Fault> {
        let mut condition = Self::default();
        for option in options {
            let flag = match &option.to_ascii_uppercase()[..] {
                b"NX" => &mut condition.only_unlimited,
                b"XX" => &mut condition.only_limited,
                b"GT" => &mut condition.only_later,
                b"LT" => &mut condition.only_earlier,
                _ => {
                    let option = c_string(&option, usize::MAX);
                    return Err(Fault::said([b"ERR Unsupported option ", option].concat()));
                }
            };
            *flag = true;
        }
        let Self {
            only_unlimited,
            only_limited,
            only_later,
            only_earlier,
        } = condition;
        if only_unlimited && (only_limited || only_later || only_earlier) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(Fault::said(text));
        }
        if only_later && only_earlier {
            let text = "ERR GT and LT options at the same time are not compatible";
            return Err(Fault::said(text));
        }
        Ok(condition)
    }

    /// Whether an entry that expires at `now` may expire at `then` instead.
    fn allows(&self, now: Option<i64>, then: i64) -> bool {
        !(self.only_unlimited && now.is_some()
            || self.only_limited && now.is_none()
            || self.only_later && now.is_none_or(|now| then <= now)
            || self.only_earlier && now.is_some_and(|now| then >= now))
    }
}

/// `PERSIST key`
pub fn persist(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let key = call.argument()?;
    let changed = kv.store.update(&key, |entry| match entry {
        Some(entry) if entry.expiry != Expiry::NEVER => {
            let value = Cow::Owned(entry.value.to_vec());
            (Change::Put(value, Expiry::NEVER), true)
        }
        _ => (Change::Keep, false),
    })?;
    Ok(call.reply.integer(changed.into())?)
}

/// `TTL key`, in seconds
pub fn ttl(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    tell_expiry(kv, call, |at| (left(at) + 500) / 1000)
}

/// `PTTL key`, in milliseconds
pub fn pttl(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    tell_expiry(kv, call, left)
}

fn left(at: i64) -> i64 {
    at.saturating_sub(now_millis()).max(0)
}

/// `EXPIRETIME key`, in seconds since 1970
pub fn expiretime(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    tell_expiry(kv, call, |at| at.saturating_add(500) / 1000)
}

/// `PEXPIRETIME key`, in milliseconds since 1970
pub fn pexpiretime(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    tell_expiry(kv, call, |at| at)
}

/// Replies -2 without an entry, -1 for an entry that stays.
fn tell_expiry(kv: &Kv, call: &mut Call<'_>, tell: impl Fn(i64) -> i64) -> Outcome {
    let key = call.argument()?;
    let number = kv.store.read(&key, |entry| match entry {
        None => -2,
        Some(entry) => entry.expiry.millis().map_or(-1, tell),
    })?;
    Ok(call.reply.integer(number)?)
}
