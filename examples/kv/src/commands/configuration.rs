//! `CONFIG GET`: the settings that clients ask a Redis for, with their values here.

use std::borrow::Cow;

use super::{Subcommand, subcommand};
use crate::call::{Call, Outcome};
use crate::pattern;
use crate::server::Kv;

/// `CONFIG GET pattern ...`
pub fn config(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    const SUBCOMMANDS: [Subcommand; 1] = [("config|get", -3, get)];
    subcommand(kv, call, "CONFIG", &SUBCOMMANDS)
}

fn get(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let mut found: Vec<(Cow<'_, [u8]>, &str)> = Vec::new();
    while let Some(pattern) = call.take() {
        let in_lower_case = pattern.to_ascii_lowercase();
        let is_name = !pattern.iter().any(|byte| b"*?[".contains(byte));
        for (name, value) in &kv.settings.redis {
            let is_wanted = if is_name {
                in_lower_case == name.as_bytes()
            } else {
                pattern::matches(&in_lower_case, name.as_bytes())
            };
            let is_known =
                |(known, _): &(Cow<'_, [u8]>, &str)| known.eq_ignore_ascii_case(name.as_bytes());
            if is_wanted && !found.iter().any(is_known) {
                // A name comes back in the client's spelling.
                let name = if is_name {
                    pattern.clone()
                } else {
                    name.as_bytes().into()
                };
                found.push((name, value));
            }
        }
    }
    call.reply.map(found.len())?;
    for (name, value) in found {
        call.reply.bulk(&name)?;
        call.reply.bulk(value.as_bytes())?;
    }
    Ok(())
}
