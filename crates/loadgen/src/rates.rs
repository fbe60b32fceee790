//! The loads of a ramp: `20k`, `10k,20k,40k`, or `10k..100k/10` (ten loads, evenly from the first
//! to the last).

use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// Requests per second, one or more loads.
#[derive(Clone, PartialEq, Debug)]
pub struct Rates(Vec<f64>);

/// A text that is no list of rates.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is neither a rate (20000, 20k, 1.5M requests per second), nor a list (10k,20k), nor a range (10k..100k/10)"
)]
pub struct RatesError(String);

impl Rates {
    /// The most loads of one ramp.
    const MOST: usize = 1_000;

    /// These loads, in requests per second. `None` if there are none or one is not finite and above
    /// zero.
    #[must_use]
    pub fn new(per_second: Vec<f64>) -> Option<Self> {
        let valid = |rate: &f64| rate.is_finite() && (1e-3..=1e9).contains(rate);
        let count = per_second.len();
        ((1..=Self::MOST).contains(&count) && per_second.iter().all(valid))
            .then_some(Self(per_second))
    }

    /// The loads, in requests per second, in the order given.
    #[must_use]
    pub fn per_second(&self) -> &[f64] {
        &self.0
    }
}

impl FromStr for Rates {
    type Err = RatesError;

    fn from_str(text: &str) -> Result<Self, RatesError> {
        let rates = match text.split_once("..") {
            Some((from, rest)) => rest.split_once('/').and_then(|(to, steps)| {
                let (from, to) = (rate(from)?, rate(to)?);
                let steps: usize = steps.trim().parse().ok()?;
                (2..=Self::MOST).contains(&steps).then(|| {
                    let step = (to - from) / (steps - 1) as f64;
                    (0..steps).map(|at| from + step * at as f64).collect()
                })
            }),
            None => text.split(',').map(rate).collect(),
        };
        rates
            .and_then(Self::new)
            .ok_or_else(|| RatesError(text.to_owned()))
    }
}

/// A rate with perhaps a `k` or an `M` behind it.
fn rate(text: &str) -> Option<f64> {
    let text = text.trim();
    let (number, unit) = match text.strip_suffix(['k', 'M']) {
        Some(number) if text.ends_with('k') => (number, 1e3),
        Some(number) => (number, 1e6),
        None => (text, 1.0),
    };
    number.parse::<f64>().ok().map(|number| number * unit)
}

/// In a plan: a number, a text as above, or a list of these.
impl<'de> Deserialize<'de> for Rates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "a rate, a text like \"10k..100k/10\", or a list of rates"
        )]
        enum Written {
            Number(f64),
            Text(String),
            List(Vec<f64>),
        }
        match Written::deserialize(deserializer)? {
            Written::Text(text) => text.parse().map_err(de::Error::custom),
            Written::Number(rate) => checked(vec![rate]),
            Written::List(rates) => checked(rates),
        }
    }
}

fn checked<E: de::Error>(rates: Vec<f64>) -> Result<Rates, E> {
    let text = format!("{rates:?}");
    Rates::new(rates).ok_or_else(|| E::custom(RatesError(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_ranges_and_units() {
        let rates = |text: &str| text.parse::<Rates>().unwrap().per_second().to_vec();
        assert_eq!(rates("20000"), [20_000.0]);
        assert_eq!(rates("1k, 2.5k,1M"), [1e3, 2.5e3, 1e6]);
        assert_eq!(rates("10k..40k/4"), [1e4, 2e4, 3e4, 4e4]);
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in [
            "",
            "fast",
            "-1",
            "0",
            "1k,,2k",
            "1k..2k",
            "1k..2k/1",
            "nan",
            "1k..2k/5000",
        ] {
            assert!(text.parse::<Rates>().is_err(), "{text}");
        }
    }
}
