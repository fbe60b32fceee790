//! Parses the parentheses of `#[preemptible(...)]`.

use std::num::NonZeroU32;

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Ident, Lit, Path, Result, Token, parse_quote_spanned};

/// The arguments, defaults filled in.
pub struct Arguments {
    /// Probe once in this many iterations of an innermost loop.
    pub every: NonZeroU32,
    /// The crate or module whose `preempt_point` is called.
    pub krate: Path,
}

impl Parse for Arguments {
    fn parse(input: ParseStream) -> Result<Self> {
        let (mut every, mut krate) = (None, None);
        while !input.is_empty() {
            let key = input.call(Ident::parse_any).map_err(|error| {
                Error::new(error.span(), "expected `every = N` or `crate = some::path`")
            })?;
            let first = match key.to_string().as_str() {
                "every" => every.replace(value(input, &key, parse_every)?).is_none(),
                "crate" => krate.replace(value(input, &key, parse_crate)?).is_none(),
                _ => return Err(unknown(&key)),
            };
            if !first {
                return Err(Error::new(
                    key.span(),
                    format!("`{key}` is given twice: keep one of the two"),
                ));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(Self {
            every: every.unwrap_or(NonZeroU32::MIN),
            krate: krate.unwrap_or_else(|| parse_quote_spanned!(Span::mixed_site() => ::shinjuku)),
        })
    }
}

/// Reads `= value` after `key`.
fn value<T>(input: ParseStream, key: &Ident, parse: fn(ParseStream) -> Result<T>) -> Result<T> {
    if input.is_empty() || input.peek(Token![,]) {
        return Err(Error::new(
            key.span(),
            format!("`{key}` needs a value: write `{}`", usage(key)),
        ));
    }
    input.parse::<Token![=]>()?;
    parse(input)
}

fn usage(key: &Ident) -> &'static str {
    if key == "every" {
        "every = 64"
    } else {
        "crate = some::path"
    }
}

fn unknown(key: &Ident) -> Error {
    let message = format!(
        "unknown argument `{key}`: `#[preemptible]` takes `every = N` (probe once in N iterations) \
         and `crate = some::path` (whose `preempt_point` to call)"
    );
    Error::new(key.span(), message)
}

fn parse_every(input: ParseStream) -> Result<NonZeroU32> {
    const EXPECTED: &str =
        "`every` needs a whole number from 1 to 4294967295, written as a literal: `every = 64`";
    let literal = input
        .parse::<Lit>()
        .map_err(|error| Error::new(error.span(), EXPECTED))?;
    let Lit::Int(integer) = &literal else {
        return Err(Error::new(literal.span(), EXPECTED));
    };
    let every = integer
        .base10_parse::<u32>()
        .map_err(|_| Error::new(literal.span(), EXPECTED))?;
    NonZeroU32::new(every).ok_or_else(|| {
        Error::new(
            literal.span(),
            "`every = 0` would never probe: use 1 to probe each iteration, or drop the attribute",
        )
    })
}

fn parse_crate(input: ParseStream) -> Result<Path> {
    const EXPECTED: &str = "`crate` needs a path, written without quotes: `crate = some::path`";
    input
        .call(Path::parse_mod_style)
        .map_err(|error| Error::new(error.span(), EXPECTED))
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;

    use super::*;

    fn parse(arguments: &str) -> Result<(u32, String)> {
        let parsed: Arguments = syn::parse_str(arguments)?;
        Ok((
            parsed.every.get(),
            parsed.krate.to_token_stream().to_string().replace(' ', ""),
        ))
    }

    fn message(arguments: &str) -> String {
        parse(arguments).expect_err(arguments).to_string()
    }

    #[test]
    fn defaults_probe_each_iteration_through_shinjuku() {
        assert_eq!(parse("").unwrap(), (1, "::shinjuku".into()));
    }

    #[test]
    fn keys_come_in_any_order_with_or_without_trailing_comma() {
        for text in [
            "every = 64, crate = crate::probe",
            "crate = crate::probe, every = 6_4u32,",
        ] {
            assert_eq!(parse(text).unwrap(), (64, "crate::probe".into()), "{text}");
        }
        assert_eq!(parse("crate = ::a::b").unwrap().1, "::a::b");
        assert_eq!(parse("every = 4294967295").unwrap().0, u32::MAX);
    }

    #[test]
    fn mistakes_are_told_with_what_to_do() {
        assert!(message("every = 0").contains("use 1 to probe each iteration"));
        for text in [
            "every = -1",
            "every = 4294967296",
            "every = 1.5",
            "every = \"64\"",
            "every = N",
            "every =",
        ] {
            assert!(
                message(text).contains("whole number from 1 to 4294967295"),
                "{text}: {}",
                message(text)
            );
        }
        assert!(message("every").contains("write `every = 64`"));
        assert!(message("crate, every = 1").contains("write `crate = some::path`"));
        assert!(message("crate = \"probe\"").contains("without quotes"));
        assert!(message("evry = 64").contains("unknown argument `evry`"));
        assert!(message("every = 1, every = 2").contains("given twice"));
        assert!(message("64").contains("expected `every = N`"));
    }
}
