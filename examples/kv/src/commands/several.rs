//! Commands on several keys, one after the other: another client may change one in between.

use shinjuku::preempt_point;

use super::strings::write_value;
use crate::call::{Call, Fault, Outcome};
use crate::engine::Expiry;
use crate::server::Kv;
use crate::store::Change;

/// `DEL key ...`, and `UNLINK`
pub fn del(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let mut removed = 0;
    for key in call.arguments.by_ref() {
        removed += kv
            .store
            .update(&key, |entry| (Change::Remove, i64::from(entry.is_some())))?;
        preempt_point();
    }
    Ok(call.reply.integer(removed)?)
}

/// `EXISTS key ...`, and `TOUCH`
pub fn exists(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let mut there = 0;
    for key in call.arguments.by_ref() {
        there += kv.store.read(&key, |entry| i64::from(entry.is_some()))?;
        preempt_point();
    }
    Ok(call.reply.integer(there)?)
}

/// `MGET key ...`
pub fn mget(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    call.reply.array(call.arguments.len())?;
    while let Some(key) = call.arguments.next() {
        kv.store.read(&key, |entry| write_value(call, entry))??;
        preempt_point();
    }
    Ok(())
}

/// `MSET key value ...`
pub fn mset(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    if call.arguments.len() % 2 == 1 {
        return Err(Fault::wrong_number("mset"));
    }
    while let Some(key) = call.arguments.next() {
        let value = call.value()?;
        kv.store
            .update(&key, |_| (Change::Put(value, Expiry::NEVER), ()))?;
        preempt_point();
    }
    Ok(call.reply.simple(b"OK")?)
}
