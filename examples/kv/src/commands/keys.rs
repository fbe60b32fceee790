//! Commands on several keys, and on all.
//!
//! Several keys are treated one after the other; another client may change a key in between.

use std::ops::ControlFlow;

use super::strings::write_value;
use crate::call::{Call, Fault, Outcome, SYNTAX};
use crate::elements::Elements;
use crate::engine::Expiry;
use crate::pattern;
use crate::server::Kv;
use crate::store::Change;

/// How many keys SCAN visits in a step by default, as in Redis.
const COUNT: usize = 10;

/// `DEL key ...`, and `UNLINK`
pub fn del(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let mut removed = 0;
    while let Some(key) = call.take() {
        removed += kv
            .store
            .update(&key, |entry| (Change::Remove, i64::from(entry.is_some())))?;
    }
    Ok(call.reply.integer(removed)?)
}

/// `EXISTS key ...`, and `TOUCH`
pub fn exists(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let mut there = 0;
    while let Some(key) = call.take() {
        there += kv.store.read(&key, |entry| i64::from(entry.is_some()))?;
    }
    Ok(call.reply.integer(there)?)
}

/// `MGET key ...`
pub fn mget(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    call.reply.array(call.left())?;
    while let Some(key) = call.take() {
        kv.store.read(&key, |entry| write_value(call, entry))??;
    }
    Ok(())
}

/// `MSET key value ...`
pub fn mset(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    if call.left() % 2 == 1 {
        return Err(Fault::wrong_number("mset"));
    }
    while let Some(key) = call.take() {
        let value = call.value()?;
        kv.store
            .update(&key, |_| (Change::Put(value, Expiry::NEVER), ()))?;
    }
    Ok(call.reply.simple(b"OK")?)
}

/// `TYPE key`
pub fn type_of(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let key = call.argument()?;
    let there = kv.store.read(&key, |entry| entry.is_some())?;
    Ok(call.reply.simple(if there { b"string" } else { b"none" })?)
}

/// `DBSIZE`
pub fn dbsize(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    Ok(call.reply.integer(kv.store.len() as i64)?)
}

/// `KEYS pattern`
pub fn keys(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let pattern = call.argument()?;
    let mut found = Elements::new(&kv.settings.gathered);
    kv.store.walk(b"", false, &mut |key, _| {
        if pattern::matches(&pattern, key) {
            found.push(key)
        } else {
            ControlFlow::Continue(())
        }
    })?;
    Ok(found.write_to(&mut call.reply)?)
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
pub fn scan(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let cursor = call.argument()?;
    let cursor = std::str::from_utf8(&cursor).ok();
    let cursor = cursor
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Fault::said("ERR invalid cursor"))?;
    let (mut count, mut pattern, mut of_type) = (COUNT, None, true);
    while let Some(option) = call.take() {
        match &option.to_ascii_uppercase()[..] {
            b"COUNT" => {
                let number = usize::try_from(call.integer_argument()?).ok();
                count = number.filter(|&number| number > 0).ok_or(SYNTAX)?;
            }
            b"MATCH" => pattern = Some(call.argument()?),
            b"TYPE" => of_type = call.argument()?.eq_ignore_ascii_case(b"string"),
            _ => return Err(SYNTAX),
        }
    }
    let mut found = Elements::new(&kv.settings.gathered);
    let next = kv.store.scan(cursor, count, |key| {
        let matches = |pattern| pattern::matches(pattern, key);
        if of_type && pattern.as_deref().is_none_or(matches) {
            found.push(key)
        } else {
            ControlFlow::Continue(())
        }
    })?;
    let unknown = "ERR this cursor is not known any more: begin again with 0";
    let next = next.ok_or_else(|| Fault::said(unknown))?;
    call.reply.array(2)?;
    call.reply.bulk(next.to_string().as_bytes())?;
    Ok(found.write_to(&mut call.reply)?)
}

/// `FLUSHDB [ASYNC | SYNC]`, and `FLUSHALL`: in both modes, the reply comes when all is removed
pub fn flush(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    if let Some(option) = call.take() {
        let is_known = [&b"ASYNC"[..], b"SYNC"]
            .iter()
            .any(|known| option.eq_ignore_ascii_case(known));
        if !is_known || call.left() > 0 {
            return Err(SYNTAX);
        }
    }
    kv.store.clear()?;
    Ok(call.reply.simple(b"OK")?)
}
