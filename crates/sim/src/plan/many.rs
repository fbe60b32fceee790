//! A value, or a list of values to sweep over, in a plan. Every other file of the plan reads its
//! keys by this.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};

/// One value or more.
#[derive(Debug)]
pub(super) struct Many<T>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrList(PhantomData))
    }
}

/// By hand, because serde's untagged enums hide what is wrong with the value.
struct OneOrList<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrList<T> {
    type Value = Many<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value, or a list of values to sweep over")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Many<T>, E> {
        T::deserialize(value.into_deserializer()).map(|one| Many(vec![one]))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Many<T>, E> {
        T::deserialize(value.into_deserializer()).map(|one| Many(vec![one]))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Many<T>, E> {
        T::deserialize(value.into_deserializer()).map(|one| Many(vec![one]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Many<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|one| Many(vec![one]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Many<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Many)
    }
}
