//! Numbers as Redis reads them.

/// The number that is all of `text`: decimal digits, perhaps after a minus sign, without leading
/// zeros, plus signs, spaces; `None` for anything else, and beyond 64 bits. (Redis: `string2ll`.)
#[must_use]
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        b"0" => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let (first, rest) = digits.split_first()?;
    let mut number = match first {
        b'1'..=b'9' => i64::from(first - b'0'),
        _ => return None,
    };
    // Summed up below zero, where there is room for one more.
    number = -number;
    for digit in rest {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number
            .checked_mul(10)?
            .checked_sub(i64::from(digit - b'0'))?;
    }
    if negative {
        Some(number)
    } else {
        number.checked_neg()
    }
}

#[cfg(test)]
mod tests {
    use super::integer;

    #[test]
    fn numbers_come_back_as_they_were() {
        for number in [0, 1, -1, 9, 10, -10, 1 << 40, i64::MAX, i64::MIN] {
            assert_eq!(integer(number.to_string().as_bytes()), Some(number));
        }
    }

    #[test]
    fn what_redis_does_not_read_is_no_number() {
        for text in [
            "",
            "-",
            "+1",
            "01",
            "-0",
            "00",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "x",
            "1x",
            "0x1",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
        ] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }
}
