//! Names for output directories: the time in UTC, so that they sort.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The present time, UTC, as `YYYYMMDD-HHMMSS`.
pub fn now() -> String {
    of(SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default())
}

/// The stamp of a moment given as time since the Unix epoch.
fn of(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// The Gregorian date of a day counted from 1970-01-01.
fn date(day: u64) -> (u64, u64, u64) {
    let leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut left) = (1970, day);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        for (seconds, stamp) in [
            (0, "19700101-000000"),
            (951_782_400, "20000229-000000"),
            (951_868_799, "20000229-235959"),
            (1_735_689_599, "20241231-235959"),
            (1_735_689_600, "20250101-000000"),
            (4_107_542_400, "21000301-000000"),
        ] {
            assert_eq!(of(Duration::from_secs(seconds)), stamp);
        }
    }
}
