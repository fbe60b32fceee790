//! Commands with places for keys and values, such as `SET key:{uniform} {value:64}`.
//!
//! | place | what stands there |
//! |---|---|
//! | `{uniform}` | a key's number, each as likely as any other |
//! | `{zipf}` | a key's number by Zipf's law |
//! | `{sequential}` | the keys' numbers one after the other |
//! | `{value:N}` | N letters and digits, 0 to 1,000,000 |
//!
//! Numbers have 12 digits, with leading zeros. So a command's length does not depend on the draw,
//! and all of it but the places is encoded once. Arguments are separated by blanks; there is no
//! quoting.

use std::str::FromStr;
use std::sync::Arc;

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::keys::{Choice, DIGITS, Keys};

/// The longest `{value:N}`, in bytes.
const LONGEST_VALUE: usize = 1_000_000;

/// A command, encoded as RESP up to its places.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    parts: Vec<Part>,
    /// Values are cut out of this; it is as long as the longest needs and a little more.
    noise: Arc<[u8]>,
}

#[derive(Clone, Debug)]
enum Part {
    Fixed(Vec<u8>),
    Key(Choice),
    Value(usize),
}

/// A text that is no template.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The command is empty.
    #[error("the command is empty")]
    Empty,
    /// There is no such place.
    #[error(
        "{{{0}}} is none of {{uniform}}, {{zipf}}, {{sequential}} and {{value:N}} (N from 0 to {LONGEST_VALUE})"
    )]
    Place(String),
    /// A place without its end.
    #[error("{0:?} has a {{ without }}")]
    Open(String),
}

impl Template {
    /// The length of each command, encoded.
    pub(crate) fn length(&self) -> usize {
        self.parts.iter().map(Part::length).sum()
    }

    /// Appends a command with its places filled in.
    pub(crate) fn write<R: Rng + ?Sized>(&self, keys: &mut Keys, rng: &mut R, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Fixed(bytes) => out.extend_from_slice(bytes),
                Part::Key(choice) => out.extend_from_slice(&digits(keys.choose(*choice, rng))),
                Part::Value(length) => {
                    let from = rng.random_range(0..=self.noise.len() - length);
                    out.extend_from_slice(&self.noise[from..from + length]);
                }
            }
        }
    }
}

fn digits(mut number: u64) -> [u8; DIGITS] {
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    digits
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let arguments: Vec<_> = text.split_whitespace().collect();
        if arguments.is_empty() {
            return Err(TemplateError::Empty);
        }
        let mut parts = vec![Part::Fixed(
            format!("*{}\r\n", arguments.len()).into_bytes(),
        )];
        let mut longest = 0;
        for argument in arguments {
            let argument = places(argument)?;
            let length: usize = argument.iter().map(Part::length).sum();
            longest = argument.iter().map(Part::length).fold(longest, usize::max);
            push(
                &mut parts,
                Part::Fixed(format!("${length}\r\n").into_bytes()),
            );
            for part in argument {
                push(&mut parts, part);
            }
            push(&mut parts, Part::Fixed(b"\r\n".to_vec()));
        }
        Ok(Self {
            parts,
            noise: noise(longest + 4096),
        })
    }
}

/// The parts of one argument.
fn places(argument: &str) -> Result<Vec<Part>, TemplateError> {
    let mut parts = Vec::new();
    let mut rest = argument;
    while let Some((before, after)) = rest.split_once('{') {
        let (place, after) = after
            .split_once('}')
            .ok_or_else(|| TemplateError::Open(argument.to_owned()))?;
        parts.push(Part::Fixed(before.as_bytes().to_vec()));
        parts.push(Part::place(place)?);
        rest = after;
    }
    parts.push(Part::Fixed(rest.as_bytes().to_vec()));
    Ok(parts)
}

/// Appends a part; adjacent fixed parts merge, so that writing takes few copies.
fn push(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (Some(Part::Fixed(bytes)), Part::Fixed(more)) => bytes.extend_from_slice(&more),
        (_, part) => parts.push(part),
    }
}

impl Part {
    fn place(text: &str) -> Result<Self, TemplateError> {
        let length = |text: &str| text.parse().ok().filter(|&length| length <= LONGEST_VALUE);
        match (text, text.split_once(':')) {
            ("uniform", _) => Ok(Self::Key(Choice::Uniform)),
            ("zipf", _) => Ok(Self::Key(Choice::Zipf)),
            ("sequential", _) => Ok(Self::Key(Choice::Sequential)),
            (_, Some(("value", bytes))) if length(bytes).is_some() => {
                Ok(Self::Value(length(bytes).unwrap_or_default()))
            }
            _ => Err(TemplateError::Place(text.to_owned())),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Fixed(bytes) => bytes.len(),
            Self::Key(_) => DIGITS,
            Self::Value(length) => *length,
        }
    }
}

/// Random letters and digits, the same in every run.
fn noise(length: usize) -> Arc<[u8]> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789AZ";
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(0);
    (0..length)
        .map(|_| LETTERS[rng.random_range(0..LETTERS.len())])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(template: &str) -> String {
        let template: Template = template.parse().unwrap();
        let mut keys = Keys::new(100, 0.99).unwrap();
        let mut out = Vec::new();
        template.write(
            &mut keys,
            &mut Xoshiro256PlusPlus::seed_from_u64(1),
            &mut out,
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_command_is_encoded_as_an_array_of_strings() {
        assert_eq!(
            written("SCAN 0  COUNT 5000"),
            "*4\r\n$4\r\nSCAN\r\n$1\r\n0\r\n$5\r\nCOUNT\r\n$4\r\n5000\r\n"
        );
        assert_eq!(
            written("GET a{sequential}z"),
            "*2\r\n$3\r\nGET\r\n$14\r\na000000000000z\r\n"
        );
    }

    #[test]
    fn lengths_are_those_of_what_is_written() {
        let text = written("SET key:{zipf} {value:64}{value:0}");
        let value = text.trim_end().rsplit("\r\n").next().unwrap();
        assert_eq!(value.len(), 64);
        assert!(text.contains("$16\r\nkey:0") && text.contains("$64\r\n"));
    }

    #[test]
    fn what_is_no_template_is_refused_by_name() {
        let error = |text: &str| text.parse::<Template>().unwrap_err();
        assert_eq!(error("  "), TemplateError::Empty);
        assert_eq!(error("GET {zip}"), TemplateError::Place("zip".into()));
        assert_eq!(
            error("SET a {value:x}"),
            TemplateError::Place("value:x".into())
        );
        assert_eq!(
            error("SET a {value:1000001}"),
            TemplateError::Place("value:1000001".into())
        );
        assert_eq!(error("GET {zipf"), TemplateError::Open("{zipf".into()));
    }

    #[test]
    fn every_choice_reaches_every_key() {
        let mut keys = Keys::new(97, 0.0).unwrap();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        for choice in [Choice::Uniform, Choice::Zipf, Choice::Sequential] {
            let mut seen = [false; 97];
            for _ in 0..5_000 {
                seen[keys.choose(choice, &mut rng) as usize] = true;
            }
            assert!(seen.iter().all(|&seen| seen), "{choice:?}");
        }
    }
}
