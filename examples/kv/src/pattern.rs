//! Patterns as in `KEYS` and `SCAN MATCH` (Redis: `stringmatchlen`).
//!
//! | | matches |
//! |---|---|
//! | `*` | any bytes, none included |
//! | `?` | any byte |
//! | `[ab]` `[a-z]` `[^a]` | one of these bytes; one in the range, both ends included; a byte that is none of these |
//! | `\x` | the byte `x`, within brackets, too |

use shinjuku::preemptible;

/// Whether all of `text` matches `pattern`. Takes at most as long as the product of their lengths.
#[must_use]
#[preemptible(every = 64)]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    // The pattern after the last `*`, and the text from the place where it was tried.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            if rest.is_empty() {
                return true;
            }
            retry = Some((rest, text));
            pattern = rest;
            continue;
        }
        let step = match text.split_first() {
            None => {
                return pattern.is_empty();
            }
            Some((&byte, rest)) => one(pattern, byte).map(|pattern| (pattern, rest)),
        };
        (pattern, text) = match (step, retry) {
            (Some(step), _) => step,
            (None, None) => return false,
            (None, Some((after, tried))) => {
                // The `*` takes in one byte more.
                let Some((_, tried)) = tried.split_first() else {
                    return false;
                };
                retry = Some((after, tried));
                (after, tried)
            }
        };
    }
}

/// The rest of `pattern` after its first element, if that matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (matched, rest) = match pattern {
        [] => (false, pattern),
        [b'?', rest @ ..] => (true, rest),
        [b'[', b'^', rest @ ..] => {
            let (found, rest) = class(rest, byte);
            (!found, rest)
        }
        [b'[', rest @ ..] => class(rest, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte, rest),
    };
    matched.then_some(rest)
}

/// Whether `byte` is in the class that starts `pattern`, and what follows the class's closing
/// bracket, which may be missing.
#[preemptible(every = 256)]
fn class(mut pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut found = false;
    loop {
        pattern = match pattern {
            [] => return (found, pattern),
            [b'\\', literal, rest @ ..] => {
                found |= *literal == byte;
                rest
            }
            [b']', rest @ ..] => return (found, rest),
            [from, b'-', to, rest @ ..] => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                rest
            }
            [literal, rest @ ..] => {
                found |= *literal == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_what_redis_says() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "abc", true),
            ("**", "abc", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("*b", "abc", false),
            ("a*c", "abbc", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "a", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("[ab]", "b", true),
            ("[ab]", "c", false),
            ("[a-c]x", "bx", true),
            ("[c-a]", "b", true),
            ("[^a]", "b", true),
            ("[^a]", "a", false),
            ("[^a-c]", "b", false),
            ("[]", "a", false),
            ("[^]", "a", true),
            ("[a", "a", true),
            ("[a-", "-", true),
            ("[\\]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a\\", true),
            ("key:*1", "key:0001", true),
            ("*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            let matched = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(matched, expected, "{pattern} {text}");
        }
    }
}
