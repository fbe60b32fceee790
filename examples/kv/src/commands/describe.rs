//! `COMMAND`: describes the commands to client libraries.

use super::{COMMANDS, Command, Subcommand, find, subcommand};
use crate::call::{Call, Outcome};
use crate::server::Kv;

/// `COMMAND [COUNT | LIST | INFO name ... | DOCS name ...]`
pub fn command(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    const SUBCOMMANDS: [Subcommand; 4] = [
        ("command|count", 2, |_, call| {
            Ok(call.reply.integer(COMMANDS.len() as i64)?)
        }),
        ("command|list", 2, list),
        ("command|info", -2, info),
        // None: Redis's documentation holds.
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
