//! Commands on the connection, and on the server as a whole.

use std::time::{SystemTime, UNIX_EPOCH};

use shinjuku::net::resp::{Protocol, integer};

use super::{Subcommand, c_string, subcommand};
use crate::call::{Call, Fault, Name, Outcome, SYNTAX, Session};
use crate::server::{Kv, REDIS_VERSION};

/// `PING [message]`
pub fn ping(_: &Kv, call: &mut Call<'_>) -> Outcome {
    if call.left() > 1 {
        return Err(Fault::wrong_number("ping"));
    }
    match call.take() {
        None => call.reply.simple(b"PONG")?,
        Some(message) => call.reply.bulk(&message)?,
    }
    Ok(())
}

/// `ECHO message`
pub fn echo(_: &Kv, call: &mut Call<'_>) -> Outcome {
    let message = call.argument()?;
    Ok(call.reply.bulk(&message)?)
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`
pub fn hello(_: &Kv, call: &mut Call<'_>) -> Outcome {
    let mut session = *call.session;
    if let Some(version) = call.take() {
        session.protocol = match integer(&version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(Fault::said("NOPROTO unsupported protocol version")),
            None => {
                let text = "ERR Protocol version is not an integer or out of range";
                return Err(Fault::said(text));
            }
        };
    }
    while let Some(option) = call.take() {
        let left = call.left();
        if option.eq_ignore_ascii_case(b"AUTH") && left >= 2 {
            let user = call.argument()?;
            call.argument()?;
            authenticate(&user)?;
        } else if option.eq_ignore_ascii_case(b"SETNAME") && left >= 1 {
            session.name = name(&call.argument()?)?;
        } else {
            let option = c_string(&option, usize::MAX);
            let text = [b"ERR Syntax error in HELLO option '", option, b"'"];
            return Err(Fault::said(text.concat()));
        }
    }
    *call.session = session;
    let reply = &mut call.reply;
    reply.set_protocol(session.protocol);
    reply.map(7)?;
    for (key, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(key.as_bytes())?;
        reply.bulk(value.as_bytes())?;
    }
    reply.bulk(b"proto")?;
    reply.integer(session.protocol.number())?;
    reply.bulk(b"id")?;
    reply.integer(call.connection as i64)?;
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes())?;
        reply.bulk(value.as_bytes())?;
    }
    reply.bulk(b"modules")?;
    Ok(reply.array(0)?)
}

/// `AUTH [user] password`: the only user, `default`, needs no password
pub fn auth(_: &Kv, call: &mut Call<'_>) -> Outcome {
    let user = call.argument()?;
    match call.left() {
        0 => Err(Fault::said(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        )),
        1 => {
            authenticate(&user)?;
            Ok(call.reply.simple(b"OK")?)
        }
        _ => Err(SYNTAX),
    }
}

fn authenticate(user: &[u8]) -> Outcome {
    if user == b"default" {
        return Ok(());
    }
    let text = "WRONGPASS invalid username-password pair or user is disabled.";
    Err(Fault::said(text))
}

fn name(bytes: &[u8]) -> Result<Name, Fault> {
    if !bytes.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        let text = "ERR Client names cannot contain spaces, newlines or special characters.";
        return Err(Fault::said(text));
    }
    Name::new(bytes).ok_or_else(|| {
        let longest = Name::LONGEST;
        Fault::said(format!(
            "ERR Client names have at most {longest} bytes here"
        ))
    })
}

/// `SELECT database`: there is only one
pub fn select(_: &Kv, call: &mut Call<'_>) -> Outcome {
    match i32::try_from(call.integer_argument()?) {
        Ok(0) => Ok(call.reply.simple(b"OK")?),
        Ok(_) => Err(Fault::said("ERR DB index is out of range")),
        Err(_) => Err(Fault::said(
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        )),
    }
}

/// `CLIENT ID | GETNAME | SETNAME name | SETINFO attribute value`
pub fn client(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    const SUBCOMMANDS: [Subcommand; 4] = [
        ("client|id", 2, |_, call| {
            Ok(call.reply.integer(call.connection as i64)?)
        }),
        ("client|getname", 2, |_, call| {
            match call.session.name.as_bytes() {
                b"" => call.reply.null()?,
                name => call.reply.bulk(name)?,
            }
            Ok(())
        }),
        ("client|setname", 3, |_, call| {
            call.session.name = name(&call.argument()?)?;
            Ok(call.reply.simple(b"OK")?)
        }),
        // Redis has it from 7.2 on, and client libraries send it when they connect.
        ("client|setinfo", 4, |_, call| {
            Ok(call.reply.simple(b"OK")?)
        }),
    ];
    subcommand(kv, call, "CLIENT", &SUBCOMMANDS)
}

/// `RESET`
pub fn reset(_: &Kv, call: &mut Call<'_>) -> Outcome {
    *call.session = Session::default();
    call.reply.set_protocol(Protocol::default());
    Ok(call.reply.simple(b"RESET")?)
}

/// `QUIT`
pub fn quit(_: &Kv, call: &mut Call<'_>) -> Outcome {
    call.close = true;
    Ok(call.reply.simple(b"OK")?)
}

/// `TIME`: seconds since 1970, and microseconds
pub fn time(_: &Kv, call: &mut Call<'_>) -> Outcome {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    call.reply.array(2)?;
    for number in [now.as_secs(), now.subsec_micros().into()] {
        call.reply.bulk(number.to_string().as_bytes())?;
    }
    Ok(())
}

/// `SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE]`: no reply; the server drains and ends
pub fn shutdown(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    const OPTIONS: [&[u8]; 4] = [b"NOSAVE", b"SAVE", b"NOW", b"FORCE"];
    while let Some(option) = call.take() {
        if !OPTIONS
            .iter()
            .any(|known| option.eq_ignore_ascii_case(known))
        {
            return Err(SYNTAX);
        }
    }
    call.close = true;
    kv.stop.now();
    Ok(())
}
