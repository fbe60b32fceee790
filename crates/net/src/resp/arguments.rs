//! The arguments of a request, without a copy.

use std::borrow::Cow;

use super::framing::{Found, Progress, find};
use super::inline::{Words, count_words, first_word};
use super::integer::integer;
use super::protocol_error::ProtocolError;

/// The arguments of `frame`, a request as the codec found it; the first is the command.
///
/// # Errors
/// What is wrong with it, for the client to be told. A frame that is cut short was cut at what goes
/// beyond the codec's limits.
pub fn arguments(frame: &[u8]) -> Result<Arguments<'_>, ProtocolError> {
    arguments_in_parts(frame, || ())
}

/// As [`arguments`], for a frame in which the codec has found nothing wrong: this does not check it
/// again. Of any other frame, arguments may be missing at the end.
///
/// # Errors
/// Quotes in an inline command that do not balance, which the codec does not look at.
pub fn arguments_of_checked(frame: &[u8]) -> Result<Arguments<'_>, ProtocolError> {
    match frame.first() {
        Some(b'*') => {
            let (left, bulks) = number(frame).ok_or(ProtocolError::InvalidCount)?;
            let form = Form::Bulks(bulks);
            Ok(Arguments { left, form })
        }
        _ => arguments(frame),
    }
}

/// As [`arguments`], and calls `between` after every 32 KiB or so: a frame of megabytes takes
/// milliseconds to read, in which a handler may want to give way.
///
/// # Errors
/// As above.
pub fn arguments_in_parts(
    frame: &[u8],
    mut between: impl FnMut(),
) -> Result<Arguments<'_>, ProtocolError> {
    const PART: usize = 32 << 10;
    let mut progress = Progress::default();
    let mut seen = frame.len().min(PART);
    let found = loop {
        let found = find(&frame[..seen], &mut progress, usize::MAX);
        if found != Found::Incomplete || seen == frame.len() {
            break found;
        }
        seen = frame.len().min(seen + PART);
        between();
    };
    match found {
        Found::Request { .. } if frame[0] == b'*' => {
            let (left, bulks) = number(frame).ok_or(ProtocolError::InvalidCount)?;
            let form = Form::Bulks(bulks);
            Ok(Arguments { left, form })
        }
        Found::Request { length } => {
            let line = &frame[..length];
            let (left, form) = (count_words(line)?, Form::Words(Words::new(line)));
            Ok(Arguments { left, form })
        }
        Found::Nothing { .. } => Ok(Arguments {
            left: 0,
            form: Form::Bulks(&[]),
        }),
        Found::Malformed { error, .. } => Err(error),
        Found::Incomplete if frame.first() == Some(&b'*') => Err(ProtocolError::InvalidLength),
        Found::Incomplete => Err(ProtocolError::TooBigInline),
    }
}

/// The arguments of a request that have not been taken yet; see [`arguments`]. An argument is a
/// copy only if there are quotes in it.
#[derive(Clone, Debug)]
pub struct Arguments<'a> {
    left: usize,
    form: Form<'a>,
}

#[derive(Clone, Debug)]
enum Form<'a> {
    /// Whole bulk strings.
    Bulks(&'a [u8]),
    /// Words with balanced quotes.
    Words(Words<'a>),
}

impl<'a> Iterator for Arguments<'a> {
    type Item = Cow<'a, [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        match &mut self.form {
            Form::Bulks(rest) => {
                let (length, after) = number(rest)?;
                let (argument, after) = after.split_at_checked(length)?;
                *rest = after.get(2..)?;
                Some(Cow::Borrowed(argument))
            }
            Form::Words(words) => words.next()?.ok(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Arguments<'_> {}

/// The first argument of `frame`, a request, as the client wrote it: in quotes, if it did so.
pub(super) fn command(frame: &[u8]) -> &[u8] {
    let array = || {
        let (_, bulks) = number(frame)?;
        let (length, bulk) = number(bulks)?;
        bulk.get(..length)
    };
    match frame.first() {
        Some(b'*') => array().unwrap_or_default(),
        _ => first_word(frame),
    }
}

/// The number on the line that `bytes` begin with, and what comes after that line. It has been
/// found to be there.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\r')?;
    let number = integer(bytes.get(1..end)?)?;
    Some((usize::try_from(number).ok()?, bytes.get(end + 2..)?))
}
