//! The computations: plain functions, none of them async.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::Cursor;

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use image::imageops::{FilterType, resize};
use image::{ImageOutputFormat, Rgb, RgbImage};
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, TableDefinition};
use regex::Regex;
use shinjuku::cancellation_point_or_unwind;

/// The picture's size, in pixels.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 540;

const ROWS: TableDefinition<&str, u64> = TableDefinition::new("rows");

/// The service's data. It is generated, so that the service needs no files.
pub struct Data {
    text: String,
    rows: Database,
    users: HashMap<String, String>,
    picture: RgbImage,
}

/// Argon2id with OWASP's least parameters: 19 MiB, some ten milliseconds.
fn hasher() -> Argon2<'static> {
    let params = Params::new(19 * 1024, 2, 1, None).expect("the parameters are within range");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

impl Data {
    /// Generates a text of so many lines, a database of as many rows, one user (`alice`,
    /// `wonderland`), and a picture.
    ///
    /// # Errors
    /// The database's error.
    pub fn generate(lines: u64) -> anyhow::Result<Self> {
        let mut text = String::new();
        for line in 0..lines {
            let word = line.wrapping_mul(2_654_435_761) as u32;
            writeln!(text, "{line} {}", format!("{word:x}").replace('1', "ab"))?;
        }
        let rows = Database::builder().create_with_backend(InMemoryBackend::new())?;
        let transaction = rows.begin_write()?;
        {
            let mut table = transaction.open_table(ROWS)?;
            for row in 0..lines {
                table.insert(format!("key-{row:06}").as_str(), row * row)?;
            }
        }
        transaction.commit()?;
        let salt = SaltString::encode_b64(b"not a random one").map_err(anyhow::Error::msg)?;
        let hash = hasher().hash_password(b"wonderland", &salt);
        let hash = hash.map_err(anyhow::Error::msg)?.to_string();
        Ok(Self {
            text,
            rows,
            users: HashMap::from([("alice".to_owned(), hash)]),
            picture: RgbImage::from_fn(WIDTH, HEIGHT, |x, y| {
                Rgb([x as u8, y as u8, (x ^ y) as u8])
            }),
        })
    }

    /// How many lines match.
    ///
    /// # Errors
    /// Why it is no regular expression.
    pub fn search(&self, expression: &str) -> Result<usize, String> {
        let expression = Regex::new(expression).map_err(|error| error.to_string())?;
        let mut hits = 0;
        for line in self.text.lines() {
            // Where the code is ours, it has a probe: preempted here, it needs no signal. It also
            // stops here if its client has hung up.
            cancellation_point_or_unwind();
            hits += usize::from(expression.is_match(line));
        }
        Ok(hits)
    }

    /// How many lines have this word.
    pub(crate) fn lines_with(&self, word: &str) -> usize {
        let mut lines = 0;
        for line in self.text.lines() {
            cancellation_point_or_unwind();
            lines += usize::from(line.contains(word));
        }
        lines
    }

    /// So many rows, a line each.
    ///
    /// # Errors
    /// The database's error.
    pub fn range(&self, from: &str, count: usize) -> Result<String, redb::Error> {
        let table = self.rows.begin_read()?.open_table(ROWS)?;
        let mut lines = String::new();
        for row in table.range(from..)?.take(count) {
            cancellation_point_or_unwind();
            let (key, value) = row?;
            // Writing to a string does not fail.
            let _ = writeln!(lines, "{} {}", key.value(), value.value());
        }
        Ok(lines)
    }

    /// Whether this is the user's password. Takes as long for unknown users.
    pub(crate) fn knows(&self, user: &str, password: &str) -> bool {
        let hash = self.users.get(user);
        let hash = hash.or_else(|| self.users.values().next());
        let verified = hash
            .and_then(|hash| PasswordHash::new(hash).ok())
            .is_some_and(|hash| hasher().verify_password(password.as_bytes(), &hash).is_ok());
        verified && self.users.contains_key(user)
    }

    /// The picture in this width, as PNG.
    ///
    /// # Errors
    /// If the width is zero, or more than the picture's.
    pub fn picture(&self, width: u32) -> Result<Vec<u8>, String> {
        if !(1..=WIDTH).contains(&width) {
            return Err(format!("the width is from 1 to {WIDTH}"));
        }
        let height = (width * HEIGHT / WIDTH).max(1);
        let small = resize(&self.picture, width, height, FilterType::Lanczos3);
        cancellation_point_or_unwind();
        let mut png = Cursor::new(Vec::new());
        small
            .write_to(&mut png, ImageOutputFormat::Png)
            .map_err(|error| error.to_string())?;
        Ok(png.into_inner())
    }
}
