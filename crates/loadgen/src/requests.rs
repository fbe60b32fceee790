//! What requests ask for: classes with their shares, and how a request is written.

use std::str::FromStr;

use rand::{Rng, SeedableRng};
use rand_distr::Distribution;
use rand_distr::weighted::WeightedIndex;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Deserializer, de};
use shinjuku_net::wire::{RackSchedMessage, ShinjukuRequest};
use shinjuku_workload::Mix;

use crate::keys::Keys;
use crate::template::{Template, TemplateError};

/// A class of RESP requests: `NAME:WEIGHT:COMMAND`, or just the command, whose lower-case name then
/// names the class.
#[derive(Clone, Debug)]
pub struct Command {
    pub(crate) name: String,
    /// Its share of the requests, relative to the others'.
    pub(crate) weight: f64,
    pub(crate) template: Template,
}

/// What is wrong with a class.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The command itself.
    #[error("{text:?}: {cause}")]
    Template {
        /// What was given.
        text: String,
        /// What is wrong.
        cause: TemplateError,
    },
    /// The weight is not finite or not above zero.
    #[error("{0}: a weight must be finite and above zero")]
    Weight(f64),
}

impl FromStr for Command {
    type Err = CommandError;

    fn from_str(text: &str) -> Result<Self, CommandError> {
        let template = |command: &str| {
            command.parse().map_err(|cause| CommandError::Template {
                text: text.to_owned(),
                cause,
            })
        };
        if let Some((name, rest)) = text.split_once(':')
            && let Some((weight, command)) = rest.split_once(':')
            && let Ok(weight) = weight.trim().parse::<f64>()
        {
            if !(weight.is_finite() && weight > 0.0) {
                return Err(CommandError::Weight(weight));
            }
            return Ok(Self {
                name: name.trim().to_owned(),
                weight,
                template: template(command)?,
            });
        }
        let name = text.split_whitespace().next().unwrap_or_default();
        Ok(Self {
            name: name.to_ascii_lowercase(),
            weight: 1.0,
            template: template(text)?,
        })
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// A datagram format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// Shinjuku's, 16 bytes.
    Shinjuku,
    /// RackSched's, 41 bytes.
    RackSched,
}

/// All classes of a run; a class is identified by its index.
#[derive(Clone, Debug)]
pub struct Requests {
    names: Vec<String>,
    weights: Vec<f64>,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Commands(Vec<Template>, Keys),
    Synthetic(Mix, Format),
}

impl Requests {
    /// RESP commands; at least one.
    pub(crate) fn commands(commands: &[Command], keys: Keys) -> Self {
        let templates = commands.iter().map(|one| one.template.clone()).collect();
        Self {
            names: commands.iter().map(|one| one.name.clone()).collect(),
            weights: commands.iter().map(|one| one.weight).collect(),
            content: Content::Commands(templates, keys),
        }
    }

    /// Datagrams that ask the server to work for some time.
    pub(crate) fn synthetic(mix: &Mix, format: Format) -> Self {
        let classes = mix.classes();
        Self {
            names: classes.iter().map(|one| one.name.clone()).collect(),
            weights: classes.iter().map(|one| one.weight).collect(),
            content: Content::Synthetic(mix.clone(), format),
        }
    }

    /// The classes' names.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The longest request, in bytes.
    pub(crate) fn longest(&self) -> usize {
        match &self.content {
            Content::Commands(templates, _) => {
                templates.iter().map(Template::length).fold(1, usize::max)
            }
            Content::Synthetic(..) => RackSchedMessage::LENGTH,
        }
    }

    /// The datagrams' format; `None` for RESP.
    pub(crate) fn format(&self) -> Option<Format> {
        match self.content {
            Content::Commands(..) => None,
            Content::Synthetic(_, format) => Some(format),
        }
    }

    /// The draws of thread `part` of `parts`: the same for the same seed, and different for each
    /// thread.
    ///
    /// With `only`, all requests are of that class.
    pub(crate) fn draws(&self, seed: u64, part: usize, parts: usize, only: Option<u16>) -> Draws {
        let mut requests = self.clone();
        if let Content::Commands(_, keys) = &mut requests.content {
            *keys = keys.starting_at(part, parts);
        }
        let mut next = stream(seed, part);
        let [for_classes, for_bodies, for_choices] = std::array::from_fn(|_| {
            let stream = next.clone();
            next.jump();
            stream
        });
        Draws {
            picks: WeightedIndex::new(&requests.weights).expect("weights were checked"),
            requests,
            only,
            for_classes,
            for_bodies,
            for_choices,
        }
    }
}

/// A thread's random numbers: threads are 2^192 numbers apart.
pub(crate) fn stream(seed: u64, part: usize) -> Xoshiro256PlusPlus {
    let mut stream = Xoshiro256PlusPlus::seed_from_u64(seed);
    for _ in 0..part {
        stream.long_jump();
    }
    stream
}

/// A series of requests.
#[derive(Debug)]
pub(crate) struct Draws {
    requests: Requests,
    picks: WeightedIndex<f64>,
    only: Option<u16>,
    for_classes: Xoshiro256PlusPlus,
    for_bodies: Xoshiro256PlusPlus,
    /// A separate stream, because the number of choices depends on the server's pace.
    for_choices: Xoshiro256PlusPlus,
}

impl Draws {
    /// The class of the next request.
    pub(crate) fn class(&mut self) -> u16 {
        // The number of classes was checked, so the index fits.
        (self.only).unwrap_or_else(|| self.picks.sample(&mut self.for_classes) as u16)
    }

    /// Appends a request of `class`. A datagram carries `stamp`, which identifies its reply.
    pub(crate) fn write(&mut self, class: u16, stamp: u64, out: &mut Vec<u8>) {
        let rng = &mut self.for_bodies;
        match &mut self.requests.content {
            Content::Commands(templates, keys) => {
                templates[usize::from(class)].write(keys, rng, out);
            }
            Content::Synthetic(mix, format) => {
                let service = mix.classes()[usize::from(class)].service.sample(rng);
                // The original's server gives 0 another meaning.
                let run_nanos = (service.round() as u64).max(1);
                match format {
                    Format::Shinjuku => out.extend_from_slice(
                        &ShinjukuRequest {
                            run_nanos,
                            generated_nanos: stamp,
                        }
                        .to_bytes(),
                    ),
                    Format::RackSched => {
                        let request = stamp as u32;
                        let message = RackSchedMessage::request(class, request, run_nanos, stamp);
                        out.extend_from_slice(&message.to_bytes());
                    }
                }
            }
        }
    }

    /// A number below `bound`, for the choice among connections.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.for_choices.next_u64() % bound as u64) as usize
    }
}
