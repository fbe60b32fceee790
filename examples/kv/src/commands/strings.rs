//! Commands on one value.

use std::borrow::Cow;

use shinjuku::net::resp::integer;
use shinjuku::preempt_point;

use super::expiry::invalid_time;
use crate::call::{Call, Fault, NOT_AN_INTEGER, Outcome, SYNTAX};
use crate::engine::{Entry, Expiry};
use crate::server::Kv;
use crate::store::{Change, now_millis};

/// Long values are written in parts of this many bytes, with a probe in between.
const PART: usize = 64 << 10;

/// `GET key`
pub fn get(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let key = call.argument()?;
    kv.store.read(&key, |entry| write_value(call, entry))?
}

pub(super) fn write_value(call: &mut Call<'_>, entry: Option<Entry<'_>>) -> Outcome {
    let Some(Entry { value, .. }) = entry else {
        return Ok(call.reply.null()?);
    };
    if value.len() <= PART {
        return Ok(call.reply.bulk(value)?);
    }
    let mut rest = call.reply.long_bulk(value.len())?;
    for part in value.chunks(PART) {
        rest.write(part)?;
        preempt_point();
    }
    Ok(rest.end()?)
}

/// When a value expires.
enum Lifetime {
    Unlimited,
    /// When the previous value would have expired.
    Kept,
    /// This many milliseconds from now.
    In(i64),
    /// This many milliseconds after the beginning of 1970.
    At(i64),
}

/// `SET key value [NX | XX] [GET] [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | KEEPTTL]`
pub fn set(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let (key, value) = (call.argument()?, call.value()?);
    let (mut only_new, mut only_known, mut tell_old) = (false, false, false);
    // The option for the expiry, and its argument.
    let mut time: Option<(&str, Cow<'_, [u8]>)> = None;
    while let Some(option) = call.take() {
        let is = |name: &&str| option.eq_ignore_ascii_case(name.as_bytes());
        let times = ["KEEPTTL", "EX", "PX", "EXAT", "PXAT"];
        if is(&"NX") && !only_known {
            only_new = true;
        } else if is(&"XX") && !only_new {
            only_known = true;
        } else if is(&"GET") {
            tell_old = true;
        } else if let Some(kind) = times.into_iter().find(is)
            && time.as_ref().is_none_or(|(before, _)| *before == kind)
        {
            let argument = if kind == "KEEPTTL" {
                Cow::default()
            } else {
                call.argument()?
            };
            time = Some((kind, argument));
        } else {
            return Err(SYNTAX);
        }
    }
    let lifetime = match time {
        None => Lifetime::Unlimited,
        Some(("KEEPTTL", _)) => Lifetime::Kept,
        Some((kind, argument)) => {
            let number = integer(&argument).ok_or(NOT_AN_INTEGER)?;
            let millis = positive_millis(number, kind.starts_with("EX"), "set")?;
            if kind.ends_with("AT") {
                Lifetime::At(millis)
            } else {
                Lifetime::In(millis)
            }
        }
    };
    let expiry = expiry_of(lifetime, "set")?;
    kv.store.update(&key, |entry| {
        let mut told = Ok(());
        if tell_old {
            told = write_value(call, entry);
        }
        let allowed = !(only_new && entry.is_some() || only_known && entry.is_none());
        let stored = told.is_ok() && allowed;
        if !tell_old {
            told = match stored {
                true => call.reply.simple(b"OK"),
                false => call.reply.null(),
            }
            .map_err(Fault::from);
        }
        if !stored {
            return (Change::Keep, told);
        }
        let kept = entry.map_or(Expiry::NEVER, |entry| entry.expiry);
        (Change::Put(value, expiry.unwrap_or(kept)), told)
    })?
}

/// `number` of seconds, or of milliseconds, in milliseconds; must be above zero.
fn positive_millis(number: i64, seconds: bool, command: &str) -> Result<i64, Fault> {
    number
        .checked_mul(if seconds { 1000 } else { 1 })
        .filter(|&millis| millis > 0)
        .ok_or_else(|| invalid_time(command))
}

/// `None`: the previous value's expiry.
fn expiry_of(lifetime: Lifetime, command: &str) -> Result<Option<Expiry>, Fault> {
    let millis = match lifetime {
        Lifetime::Unlimited => return Ok(Some(Expiry::NEVER)),
        Lifetime::Kept => return Ok(None),
        Lifetime::At(millis) => Some(millis),
        Lifetime::In(millis) => now_millis().checked_add(millis),
    };
    let millis = millis.ok_or_else(|| invalid_time(command))?;
    Ok(Some(Expiry::at(millis)))
}

/// `SETNX key value`
pub fn setnx(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let (key, value) = (call.argument()?, call.value()?);
    let new = kv.store.update(&key, |entry| match entry {
        None => (Change::Put(value, Expiry::NEVER), true),
        Some(_) => (Change::Keep, false),
    })?;
    Ok(call.reply.integer(new.into())?)
}

/// `SETEX key seconds value`
pub fn setex(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    set_expiring(kv, call, "setex", true)
}

/// `PSETEX key milliseconds value`
pub fn psetex(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    set_expiring(kv, call, "psetex", false)
}

fn set_expiring(kv: &Kv, call: &mut Call<'_>, command: &str, seconds: bool) -> Outcome {
    let key = call.argument()?;
    let number = call.integer_argument()?;
    let value = call.value()?;
    let millis = positive_millis(number, seconds, command)?;
    let expiry = expiry_of(Lifetime::In(millis), command)?.unwrap_or_default();
    kv.store
        .update(&key, |_| (Change::Put(value, expiry), ()))?;
    Ok(call.reply.simple(b"OK")?)
}

/// `GETSET key value`
pub fn getset(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let (key, value) = (call.argument()?, call.value()?);
    kv.store.update(&key, |entry| {
        let told = write_value(call, entry);
        let change = match told {
            Ok(()) => Change::Put(value, Expiry::NEVER),
            Err(_) => Change::Keep,
        };
        (change, told)
    })?
}

/// `GETDEL key`
pub fn getdel(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let key = call.argument()?;
    kv.store.update(&key, |entry| {
        let told = write_value(call, entry);
        let change = match told {
            Ok(()) => Change::Remove,
            Err(_) => Change::Keep,
        };
        (change, told)
    })?
}

/// `INCR key`
pub fn incr(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let key = call.argument()?;
    add(kv, call, &key, 1)
}

/// `DECR key`
pub fn decr(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let key = call.argument()?;
    add(kv, call, &key, -1)
}

/// `INCRBY key number`
pub fn incrby(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let (key, number) = (call.argument()?, call.integer_argument()?);
    add(kv, call, &key, number)
}

/// `DECRBY key number`
pub fn decrby(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let (key, number) = (call.argument()?, call.integer_argument()?);
    let negated = number.checked_neg();
    let negated = negated.ok_or_else(|| Fault::said("ERR decrement would overflow"))?;
    add(kv, call, &key, negated)
}

fn add(kv: &Kv, call: &mut Call<'_>, key: &[u8], number: i64) -> Outcome {
    let sum = kv.store.update(key, |entry| {
        let (before, expiry) = match entry {
            None => (Some(0), Expiry::NEVER),
            Some(entry) => (integer(entry.value), entry.expiry),
        };
        let Some(before) = before else {
            return (Change::Keep, Err(NOT_AN_INTEGER));
        };
        let Some(sum) = before.checked_add(number) else {
            let overflow = Fault::said("ERR increment or decrement would overflow");
            return (Change::Keep, Err(overflow));
        };
        let value = Cow::Owned(sum.to_string().into_bytes());
        (Change::Put(value, expiry), Ok(sum))
    })??;
    Ok(call.reply.integer(sum)?)
}

/// `APPEND key value`
pub fn append(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let (key, value) = (call.argument()?, call.argument()?);
    let length = kv.store.update(&key, |entry| {
        let (before, expiry) = match entry {
            None => (&b""[..], Expiry::NEVER),
            Some(entry) => (entry.value, entry.expiry),
        };
        let length = before.len() + value.len();
        if length > kv.settings.longest_value {
            let text = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
            return (Change::Keep, Err(Fault::said(text)));
        }
        let both = Cow::Owned([before, &value].concat());
        (Change::Put(both, expiry), Ok(length))
    })??;
    Ok(call.reply.integer(length as i64)?)
}

/// `STRLEN key`
pub fn strlen(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let key = call.argument()?;
    let length = |entry: Option<Entry<'_>>| entry.map_or(0, |entry| entry.value.len());
    let length = kv.store.read(&key, length)?;
    Ok(call.reply.integer(length as i64)?)
}
