//! Commands on several keys, one after the other; another client may change a key in between.

use super::strings::write_value;
use crate::call::{Call, Fault, Outcome};
use crate::engine::Expiry;
use crate::server::Kv;
use crate::store::Change;

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
