//! Commands that Redis does not have: keys in order, from one to another. Both ends are included.
//! As the first key, `-` is the least of all; as the last, `+` is the greatest.

use std::ops::ControlFlow;

use crate::call::{Call, Fault, Outcome, SYNTAX};
use crate::elements::Elements;
use crate::server::Kv;

/// `RANGE first last [LIMIT count]`: keys and their values, in turn
pub fn range(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let ends = Ends::read(call)?;
    let mut limit = usize::MAX;
    if let Some(option) = call.take() {
        if !option.eq_ignore_ascii_case(b"LIMIT") || call.left() != 1 {
            return Err(SYNTAX);
        }
        let number = usize::try_from(call.integer_argument()?);
        limit = number.map_err(|_| Fault::said("ERR LIMIT can't be negative"))?;
    }
    let mut found = Elements::new(&kv.settings.gathered);
    if limit > 0 {
        walk(kv, &ends, true, |key, value| {
            limit -= 1;
            found.push(key)?;
            found.push(value)?;
            if limit == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
    }
    Ok(found.write_to(&mut call.reply)?)
}

/// `COUNT-RANGE first last`: the number of keys
pub fn count_range(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let ends = Ends::read(call)?;
    let mut count = 0;
    walk(kv, &ends, false, |_, _| {
        count += 1;
        ControlFlow::Continue(())
    })?;
    Ok(call.reply.integer(count)?)
}

struct Ends {
    first: Vec<u8>,
    /// `None`: the range goes to the last key.
    last: Option<Vec<u8>>,
}

impl Ends {
    fn read(call: &mut Call<'_>) -> Result<Self, Fault> {
        let (first, last) = (call.argument()?.into_owned(), call.argument()?.into_owned());
        Ok(Self {
            first: if first == b"-" { Vec::new() } else { first },
            last: Some(last).filter(|last| last != b"+"),
        })
    }
}

fn walk(
    kv: &Kv,
    ends: &Ends,
    values: bool,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Outcome {
    kv.store.walk(&ends.first, values, &mut |key, entry| {
        if ends.last.as_ref().is_some_and(|last| key > &last[..]) {
            return ControlFlow::Break(());
        }
        visit(key, entry.value)
    })?;
    Ok(())
}
