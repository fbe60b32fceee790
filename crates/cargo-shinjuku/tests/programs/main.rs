//! Programs that `cargo shinjuku` builds.
#![allow(missing_docs)]

mod builds;
mod c_code;
mod sqlite;
mod stress;
mod workspace;
