//! Request mixes: classes of requests, each with a share, a service time and perhaps an SLO.

use std::fmt;

use rand::Rng;
use rand_distr::Distribution;
use rand_distr::weighted::WeightedIndex;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::WorkloadError;
use crate::error::positive;
use crate::service::{self, ServiceTime};

/// A request class (request type).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Its name in reports.
    pub name: String,
    /// Its share of the requests, relative to the other classes' weights.
    pub weight: f64,
    /// How long its requests run.
    pub service: ServiceTime,
    /// The latency target, in us, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_us: Option<f64>,
}

impl Class {
    /// A class without an SLO.
    #[must_use]
    pub fn new(name: impl Into<String>, weight: f64, service: ServiceTime) -> Self {
        Self {
            name: name.into(),
            weight,
            service,
            slo_us: None,
        }
    }

    /// The same class with a latency target, in us.
    #[must_use]
    pub fn with_slo_us(self, slo_us: f64) -> Self {
        Self {
            slo_us: Some(slo_us),
            ..self
        }
    }
}

/// Classes of requests with their shares, ordered from short to long by mean service time.
///
/// A class is identified by its index here. A mix of two classes is what the literature calls
/// bimodal; then [`Mix::SHORT`] and [`Mix::LONG`] are those indices.
///
/// In a configuration file a mix is either the name of a [named](Mix::named) one or a table:
///
/// ```
/// # use shinjuku_workload::Mix;
/// # #[derive(serde::Deserialize)] struct Plan { mixes: Vec<Mix> }
/// let plan: Plan = toml::from_str(r#"
///     mixes = [
///         "hi",
///         { name = "store", classes = [
///             { name = "get", weight = 99.5, service = { kind = "exponential", mean_us = 1.2 }, slo_us = 50.0 },
///             { name = "scan", weight = 0.5, service = { kind = "fixed", us = 480.0 } },
///         ] },
///     ]
/// "#)?;
/// assert_eq!(plan.mixes[0].mean_ns(), 2_997.5);
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    name: String,
    classes: Vec<Class>,
    /// Shares of the requests; they sum to one.
    shares: Vec<f64>,
    picks: WeightedIndex<f64>,
}

impl Mix {
    /// The short class of a two-class mix.
    pub const SHORT: u16 = 0;

    /// The long class of a two-class mix.
    pub const LONG: u16 = 1;

    /// The mixes that [`Mix::named`] knows.
    pub const NAMES: [&'static str; 7] = ["hi", "mid", "tri", "exp", "fixed", "lognormal", "tpcc"];

    /// A mix of one or more classes.
    ///
    /// # Errors
    /// There is no class, or more than a `u16` counts; a weight or an SLO is not finite and above
    /// zero; or the classes are not in order of their mean service times.
    pub fn new(name: impl Into<String>, classes: Vec<Class>) -> Result<Self, WorkloadError> {
        let name = name.into();
        if classes.is_empty() {
            return Err(WorkloadError::Empty {
                what: "the list of classes",
            });
        }
        let limit = usize::from(u16::MAX);
        if classes.len() > limit {
            let count = classes.len() as f64;
            return Err(WorkloadError::TooMany {
                what: "classes",
                count,
                limit,
            });
        }
        for class in &classes {
            positive("weight of a class", class.weight)?;
            if let Some(slo_us) = class.slo_us {
                positive("slo_us", slo_us)?;
            }
        }
        for pair in classes.windows(2) {
            if pair[0].service.mean_ns() > pair[1].service.mean_ns() {
                let class = pair[0].name.clone();
                return Err(WorkloadError::ClassOrder { mix: name, class });
            }
        }
        let total = positive(
            "sum of the weights",
            classes.iter().map(|class| class.weight).sum(),
        )?;
        let shares: Vec<_> = classes.iter().map(|class| class.weight / total).collect();
        let picks = WeightedIndex::new(&shares).expect("the weights were checked");
        Ok(Self {
            name,
            classes,
            shares,
            picks,
        })
    }

    /// A mix of the literature, by name:
    ///
    /// | name | classes |
    /// |---|---|
    /// | `hi` | 99.5 % of 0.5 us, 0.5 % of 500 us ("extreme bimodal") |
    /// | `mid` | half of 1 us, half of 100 us ("high bimodal") |
    /// | `tri` | 1, 10 and 100 us, a third each |
    /// | `exp` | exponential, mean 1 us |
    /// | `fixed` | 1 us |
    /// | `lognormal` | mean 1 us, standard deviation 10 us |
    /// | `tpcc` | the five transactions of TPC-C: 44 % of 5.7 us, 4 % of 6, 44 % of 20, 4 % of 88, 4 % of 100 |
    ///
    /// # Errors
    /// [`WorkloadError::UnknownMix`] for another name; its message lists these.
    pub fn named(name: &str) -> Result<Self, WorkloadError> {
        let fixed = |name: &str, share, us| Ok(Class::new(name, share, ServiceTime::fixed(us)?));
        let only = |service| vec![Class::new("request", 1.0, service)];
        let classes = match name {
            "hi" => vec![fixed("short", 99.5, 0.5)?, fixed("long", 0.5, 500.0)?],
            "mid" => vec![fixed("short", 50.0, 1.0)?, fixed("long", 50.0, 100.0)?],
            "tri" => vec![
                fixed("short", 1.0, 1.0)?,
                fixed("medium", 1.0, 10.0)?,
                fixed("long", 1.0, 100.0)?,
            ],
            "exp" => only(ServiceTime::exponential(1.0)?),
            "fixed" => only(ServiceTime::fixed(1.0)?),
            "lognormal" => only(ServiceTime::lognormal(1.0, 10.0)?),
            "tpcc" => {
                let classes = service::TPCC
                    .iter()
                    .map(|&(name, us, share)| fixed(name, share, us));
                classes.collect::<Result<_, WorkloadError>>()?
            }
            _ => {
                return Err(WorkloadError::UnknownMix {
                    name: name.to_owned(),
                });
            }
        };
        Self::new(name, classes)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its classes; a class's index is its identity everywhere else.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The share of the requests that are of this class, between 0 and 1.
    ///
    /// # Panics
    /// If the mix has no such class.
    #[must_use]
    pub fn share(&self, class: u16) -> f64 {
        self.shares[usize::from(class)]
    }

    /// The mean service time of a request, in ns.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.weighted(ServiceTime::mean_ns)
    }

    /// The mean of the squared service time of a request, in ns²; infinite if a class's mean is.
    #[must_use]
    pub fn second_moment(&self) -> f64 {
        self.weighted(ServiceTime::second_moment)
    }

    /// The squared coefficient of variation of the service time of a request.
    #[must_use]
    pub fn squared_variation(&self) -> f64 {
        service::squared_variation(self.mean_ns(), self.second_moment())
    }

    /// Draws the class of a request.
    pub fn sample_class<R: Rng + ?Sized>(&self, rng: &mut R) -> u16 {
        // Fits: the number of classes was checked.
        self.picks.sample(rng) as u16
    }

    fn weighted(&self, moment: impl Fn(&ServiceTime) -> f64) -> f64 {
        self.classes
            .iter()
            .zip(&self.shares)
            .map(|(class, share)| share * moment(&class.service))
            .sum()
    }
}

impl Serialize for Mix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut table = serializer.serialize_struct("Mix", 2)?;
        table.serialize_field("name", &self.name)?;
        table.serialize_field("classes", &self.classes)?;
        table.end()
    }
}

impl<'de> Deserialize<'de> for Mix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NameOrTable)
    }
}

/// By hand, because serde's untagged enums hide what is wrong inside the table.
struct NameOrTable;

impl<'de> Visitor<'de> for NameOrTable {
    type Value = Mix;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the name of a mix ({}), ", Mix::NAMES.join(", "))?;
        formatter.write_str("or a table with `name` and `classes`")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Mix, E> {
        Mix::named(name).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Mix, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            name: String,
            classes: Vec<Class>,
        }
        let table = Table::deserialize(MapAccessDeserializer::new(map))?;
        Mix::new(table.name, table.classes).map_err(de::Error::custom)
    }
}

impl std::str::FromStr for Mix {
    type Err = WorkloadError;

    /// As [`Mix::named`], for command lines.
    fn from_str(name: &str) -> Result<Self, WorkloadError> {
        Self::named(name)
    }
}
