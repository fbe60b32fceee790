//! `tail` and `head` in TOML. The policy crate's [`Requeue`] knows nothing of serde.

use serde::{Deserialize, Serialize};
use shinjuku_policy::Requeue;

#[derive(Serialize, Deserialize)]
#[serde(remote = "Requeue", rename_all = "lowercase")]
pub(super) enum Word {
    Tail,
    Head,
}

/// The same for a value that may be left out.
pub(super) mod optional {
    use serde::{Deserializer, Serializer};

    use super::{Deserialize, Requeue, Serialize, Word};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Given(#[serde(with = "Word")] Requeue);

    pub(in super::super) fn serialize<S: Serializer>(
        requeue: &Option<Requeue>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        requeue.map(Given).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Requeue>, D::Error> {
        let given = Option::<Given>::deserialize(deserializer)?;
        Ok(given.map(|Given(requeue)| requeue))
    }
}
