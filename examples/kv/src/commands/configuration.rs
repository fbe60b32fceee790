//! `CONFIG GET`: what clients ask a Redis for, as it is here.

use super::{Subcommand, subcommand};
use crate::call::{Call, Outcome};
use crate::pattern;
use crate::server::{Kv, RedisSetting};

/// `CONFIG GET pattern ...`
pub fn config(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    const SUBCOMMANDS: [Subcommand; 1] = [("config|get", -3, get)];
    subcommand(kv, call, "CONFIG", &SUBCOMMANDS)
}

fn get(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let patterns: Vec<Vec<u8>> = call
        .arguments
        .by_ref()
        .map(|pattern| pattern.to_ascii_lowercase())
        .collect();
    let is_wanted = |(name, _): &&RedisSetting| {
        let matches = |pattern: &Vec<u8>| pattern::matches(pattern, name.as_bytes());
        patterns.iter().any(matches)
    };
    let wanted: Vec<_> = kv.settings.redis.iter().filter(is_wanted).collect();
    call.reply.map(wanted.len())?;
    for (name, value) in wanted {
        call.reply.bulk(name.as_bytes())?;
        call.reply.bulk(value.as_bytes())?;
    }
    Ok(())
}
