//! In which order the scheduled run: a cycle of slots, each of one slice.

/// Most slots of a table.
pub const MOST_SLOTS: usize = 1024;

/// A cycle of slots. Each belongs to one of the scheduled. These are numbered from 0, and each has
/// one slot at least.
///
/// ```
/// use shinjuku_elevate::Table;
///
/// let table = Table::named("A-B-A-C", &["A", "B", "C"])?;
/// assert_eq!(table.slots(), [0, 1, 0, 2]);
/// assert_eq!(table.share(0), 0.5);
/// let error = Table::named("A-B", &["A", "B", "C"]).unwrap_err();
/// assert_eq!(error.to_string(), "the order never lets C run: give it a slot");
/// # Ok::<(), shinjuku_elevate::TableError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table(Vec<usize>);

/// Why an order cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum TableError {
    /// It has no names.
    #[error("there is nothing to schedule: name one thread or process at least")]
    Empty,
    /// A name that none of the scheduled has.
    #[error("the order names {name:?}, which is none of the scheduled: {}", known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    /// One of the scheduled has no slot.
    #[error("the order never lets {name} run: give it a slot")]
    NeverRuns { name: String },
    /// Two of the scheduled have one name, or a name is none.
    #[error("{name:?} cannot be a name: names differ, are not empty, and have neither - nor =")]
    Name { name: String },
    /// More slots than a table has.
    #[error("the order has {slots} slots, but {MOST_SLOTS} at most are possible")]
    TooLong { slots: usize },
}

impl Table {
    /// Each in turn.
    ///
    /// # Errors
    /// [`TableError::Empty`] or [`TableError::TooLong`].
    pub fn round_robin(scheduled: usize) -> Result<Self, TableError> {
        Self::checked((0..scheduled).collect())
    }

    /// An order such as `A-A-B-C`, in which the scheduled have these names.
    ///
    /// # Errors
    /// [`TableError`] says what is wrong with order or names.
    pub fn named<Name: AsRef<str>>(order: &str, names: &[Name]) -> Result<Self, TableError> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        for (at, &name) in names.iter().enumerate() {
            if name.is_empty() || name.contains(['-', '=']) || names[..at].contains(&name) {
                return Err(TableError::Name {
                    name: name.to_owned(),
                });
            }
        }
        let slot = |name: &str| {
            let at = names.iter().position(|known| *known == name);
            at.ok_or_else(|| TableError::Unknown {
                name: name.to_owned(),
                known: names.iter().map(|&name| name.to_owned()).collect(),
            })
        };
        if names.is_empty() {
            return Err(TableError::Empty);
        }
        let slots = order.split('-').map(slot).collect::<Result<Vec<_>, _>>()?;
        match (0..names.len()).find(|one| !slots.contains(one)) {
            Some(one) => Err(TableError::NeverRuns {
                name: names[one].to_owned(),
            }),
            None => Self::checked(slots),
        }
    }

    fn checked(slots: Vec<usize>) -> Result<Self, TableError> {
        match slots.len() {
            0 => Err(TableError::Empty),
            1..=MOST_SLOTS => Ok(Self(slots)),
            slots => Err(TableError::TooLong { slots }),
        }
    }

    /// The number of the one that has each slot.
    #[must_use]
    pub fn slots(&self) -> &[usize] {
        &self.0
    }

    /// How many are scheduled.
    #[must_use]
    pub fn scheduled(&self) -> usize {
        self.0.iter().max().map_or(0, |last| last + 1)
    }

    /// The share of the slots that one of the scheduled has.
    #[must_use]
    pub fn share(&self, one: usize) -> f64 {
        let own = self.0.iter().filter(|slot| **slot == one).count();
        own as f64 / self.0.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slides_tables_give_half_of_the_core_to_one() {
        let names = ["A", "B", "C"];
        for (order, slots) in [("A-A-B-C", [0, 0, 1, 2]), ("A-B-A-C", [0, 1, 0, 2])] {
            let table = Table::named(order, &names).unwrap();
            assert_eq!(table.slots(), slots);
            assert_eq!([0, 1, 2].map(|one| table.share(one)), [0.5, 0.25, 0.25]);
        }
        assert_eq!(Table::round_robin(3).unwrap().slots(), [0, 1, 2]);
    }

    #[test]
    fn bad_tables_are_refused_in_words() {
        let words = |order: &str, names: &[&str]| {
            let error = Table::named(order, names).unwrap_err();
            error.to_string()
        };
        let two = ["A", "B"];
        assert_eq!(
            words("A-D-B", &two),
            "the order names \"D\", which is none of the scheduled: A, B"
        );
        assert!(words("", &two).contains("names \"\""));
        assert!(words("A--B", &two).contains("names \"\""));
        assert!(words("B-B", &two).contains("never lets A run"));
        assert!(words("A-A", &["A", "A"]).contains("names differ"));
        assert!(words("A", &["A-1"]).contains("\"A-1\" cannot be a name"));
        assert!(words("A", &[]).contains("nothing to schedule"));
        let long = vec!["A"; MOST_SLOTS + 1].join("-");
        assert!(words(&long, &["A"]).contains("1025 slots"));
        assert_eq!(Table::round_robin(0), Err(TableError::Empty));
    }
}
