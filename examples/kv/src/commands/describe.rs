//! What client libraries ask a server about itself: `COMMAND` describes the commands, `CONFIG GET`
//! gives the settings of a Redis with their values here.

use std::borrow::Cow;

use super::{COMMANDS, Command, Subcommand, find, subcommand};
use crate::call::{Call, Outcome};
use crate::pattern;
use crate::server::Kv;

/// `COMMAND [COUNT | LIST | INFO name ... | DOCS name ...]`
pub fn command(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    const SUBCOMMANDS: [Subcommand; 4] = [
        ("command|count", 2, |_, call| {
            Ok(call.reply.integer(COMMANDS.len() as i64)?)
        }),
        ("command|list", 2, list),
        ("command|info", -2, info),
        // An empty map: clients have Redis's documentation.
        ("command|docs", -2, |_, call| Ok(call.reply.map(0)?)),
    ];
    if call.left() == 0 {
        return info(kv, call);
    }
    subcommand(kv, call, "COMMAND", &SUBCOMMANDS)
}

fn list(_: &Kv, call: &mut Call<'_>) -> Outcome {
    call.reply.array(COMMANDS.len())?;
    for command in COMMANDS {
        call.reply.bulk(command.name.as_bytes())?;
    }
    Ok(())
}

fn info(_: &Kv, call: &mut Call<'_>) -> Outcome {
    if call.left() == 0 {
        call.reply.array(COMMANDS.len())?;
        return COMMANDS
            .iter()
            .try_for_each(|command| describe(call, command));
    }
    call.reply.array(call.left())?;
    while let Some(name) = call.take() {
        match find(&name) {
            Some(command) => describe(call, command)?,
            None => call.reply.null()?,
        }
    }
    Ok(())
}

/// Name, arity, flags, places of keys; no categories, hints, key specifications or subcommands.
fn describe(call: &mut Call<'_>, command: &Command) -> Outcome {
    let reply = &mut call.reply;
    reply.array(10)?;
    reply.bulk(command.name.as_bytes())?;
    reply.integer(command.arity)?;
    reply.set(1)?;
    reply.simple(if command.writes {
        b"write"
    } else {
        b"readonly"
    })?;
    let (first, last, step) = command.keys.places();
    for number in [first, last, step] {
        reply.integer(number)?;
    }
    reply.set(0)?;
    reply.set(0)?;
    reply.array(0)?;
    Ok(reply.array(0)?)
}

/// `CONFIG GET pattern ...`
pub fn config(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    const SUBCOMMANDS: [Subcommand; 1] = [("config|get", -3, config_get)];
    subcommand(kv, call, "CONFIG", &SUBCOMMANDS)
}

fn config_get(kv: &Kv, call: &mut Call<'_>) -> Outcome {
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
