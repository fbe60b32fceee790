//! Writes the probe into one loop. Every iteration of a loop enters its body, whatever `continue`
//! ended the last one. So the probe stands at the body's head: none of the user's code moves, and
//! no jump can miss the probe.
//!
//! Generated names are resolved where the macro is defined (`Span::mixed_site`), so they neither
//! see nor shadow the user's names.

use std::num::NonZeroU32;

use proc_macro2::{Literal, Span, TokenStream};
use quote::quote_spanned;
use syn::spanned::Spanned;
use syn::{
    AttrStyle, Attribute, Block, Expr, ExprForLoop, ExprLoop, ExprWhile, Ident, Path, Stmt,
    parse_quote, parse_quote_spanned,
};

/// A call of `preempt_point()`.
pub struct Probe(TokenStream);

impl Probe {
    pub fn new(krate: &Path) -> Self {
        // Located at the path, so that "cannot find `preempt_point`" points at the user's own text.
        let name = Ident::new("preempt_point", Span::mixed_site().located_at(krate.span()));
        Self(quote_spanned!(Span::mixed_site() => #krate::#name();))
    }

    /// Makes the loop `expr` probe once in `every` iterations. Other expressions stay as they are.
    pub fn insert(&self, expr: &mut Expr, every: NonZeroU32) {
        let each_iteration = every == NonZeroU32::MIN;
        let (attrs, body) = match expr {
            Expr::ForLoop(for_loop) if !each_iteration => {
                *expr = self.strip_mined(for_loop, every);
                return;
            }
            Expr::ForLoop(ExprForLoop { attrs, body, .. })
            | Expr::While(ExprWhile { attrs, body, .. })
            | Expr::Loop(ExprLoop { attrs, body, .. }) => (attrs, body),
            _ => return,
        };
        if each_iteration {
            let probe = &self.0;
            insert_at_head(body, parse_quote!(#probe));
        } else {
            let outer = take_outer(attrs);
            insert_at_head(body, self.each_nth(every));
            *expr = parse_quote_spanned! { Span::mixed_site() =>
                #(#outer)* {
                    let mut iterations = 0u32;
                    #expr
                }
            };
        }
    }

    /// Probes when `iterations` reaches a multiple of `every`. A remainder does not depend on an
    /// earlier reset, as a countdown does, which costs twice as much. The count may wrap; a probe
    /// then comes early.
    fn each_nth(&self, every: NonZeroU32) -> Stmt {
        let (probe, every) = (&self.0, Literal::u32_suffixed(every.get()));
        parse_quote_spanned! { Span::mixed_site() => {
            iterations = iterations.wrapping_add(1);
            if iterations % #every == 0 { #probe }
        }}
    }

    /// Cuts a `for` loop into strips of `every` iterations, with a probe between two strips. No
    /// probe inside a strip keeps the compiler from vectorising it.
    ///
    /// The body stays the body of a `for` that carries the user's label, so `continue` and `break`
    /// keep their meaning even where a macro hides them. `ended` distinguishes a `break` from the
    /// strip's end: only the end makes the iterator return `None`. The strip counts its items
    /// itself, because `Take` does not distinguish a full strip from an exhausted iterator, and an
    /// iterator must not be called again after `None`. Of some ten forms tried, this one vectorises
    /// most.
    fn strip_mined(&self, for_loop: &ExprForLoop, every: NonZeroU32) -> Expr {
        let ExprForLoop {
            attrs,
            label,
            for_token,
            pat,
            in_token,
            expr,
            body,
        } = for_loop;
        let mut inner = attrs.clone();
        let outer = take_outer(&mut inner);
        let (leading, stmts) = body.stmts.split_at(leading_items(body));
        let probe = &self.0;
        let (length, every) = (
            Literal::usize_suffixed(every.get() as usize),
            Literal::u32_suffixed(every.get()),
        );
        // `match` keeps the temporaries of the head alive for the whole loop, and its semicolon
        // drops them there, as `for` does.
        parse_quote_spanned! { Span::mixed_site() =>
            #(#outer)* {
                match #expr {
                    items => {
                        let mut items = ::core::iter::IntoIterator::into_iter(items);
                        loop {
                            let mut taken = 0u32;
                            let mut ended = false;
                            let mut strip = ::core::iter::Iterator::take(&mut items, #length);
                            #label #for_token #pat #in_token ::core::iter::from_fn(|| {
                                let item = ::core::iter::Iterator::next(&mut strip);
                                ended = ::core::option::Option::is_none(&item);
                                item
                            }) {
                                #(#inner)*
                                #(#leading)*
                                taken += 1;
                                #(#stmts)*
                            }
                            if !ended || taken != #every {
                                break;
                            }
                            #probe
                        }
                    }
                };
            }
        }
    }
}

/// Lint levels and `cfg`s on a loop go to the block that takes its place; attributes inside its
/// body stay there.
fn take_outer(attrs: &mut Vec<Attribute>) -> Vec<Attribute> {
    attrs
        .extract_if(.., |attribute| matches!(attribute.style, AttrStyle::Outer))
        .collect()
}

/// Inserts behind leading items, or clippy would tell the user that they follow a statement.
fn insert_at_head(body: &mut Block, stmt: Stmt) {
    body.stmts.insert(leading_items(body), stmt);
}

fn leading_items(body: &Block) -> usize {
    body.stmts
        .iter()
        .take_while(|stmt| matches!(stmt, Stmt::Item(_)))
        .count()
}

#[cfg(test)]
mod tests {
    use quote::{ToTokens, quote};

    use super::*;

    /// Compares the expansion of a loop with the expected one, as token streams.
    fn check(every: u32, before: TokenStream, after: TokenStream) {
        let mut expr: Expr = syn::parse2(before).unwrap();
        let after: Expr = syn::parse2(after).unwrap(); // tokens of equal spacing
        Probe::new(&parse_quote!(p)).insert(&mut expr, NonZeroU32::new(every).unwrap());
        assert_eq!(
            expr.into_token_stream().to_string(),
            after.into_token_stream().to_string()
        );
    }

    #[test]
    #[rustfmt::skip] // it would drop the attributes inside loops
    fn each_iteration_probes_at_the_head_of_the_body() {
        check(1, quote!(loop {}), quote!(loop { p::preempt_point(); }));
        check(1, quote!('a: while x { y }), quote!('a: while x { p::preempt_point(); y }));
        check(
            1,
            quote!(#[outer] for x in y { #![inner] use a::b; fn c() {} d(); fn e() {} }),
            quote!(#[outer] for x in y { #![inner] use a::b; fn c() {} p::preempt_point(); d(); fn e() {} }),
        );
    }

    #[test]
    #[rustfmt::skip]
    fn other_loops_count_outside_and_probe_inside() {
        check(
            64,
            quote!(#[outer] 'a: while let Some(x) = y { #![inner] use b::c; d(x) }),
            quote!(#[outer] {
                let mut iterations = 0u32;
                'a: while let Some(x) = y {
                    #![inner]
                    use b::c;
                    { iterations = iterations.wrapping_add(1); if iterations % 64u32 == 0 { p::preempt_point(); } }
                    d(x)
                }
            }),
        );
    }

    #[test]
    #[rustfmt::skip]
    fn for_loops_become_strips_with_the_probe_between() {
        check(
            8,
            quote!(#[outer] 'a: for (i, x) in y.z() { #![inner] use b::c; d(x) }),
            quote!(#[outer] {
                match y.z() {
                    items => {
                        let mut items = ::core::iter::IntoIterator::into_iter(items);
                        loop {
                            let mut taken = 0u32;
                            let mut ended = false;
                            let mut strip = ::core::iter::Iterator::take(&mut items, 8usize);
                            'a: for (i, x) in ::core::iter::from_fn(|| {
                                let item = ::core::iter::Iterator::next(&mut strip);
                                ended = ::core::option::Option::is_none(&item);
                                item
                            }) {
                                #![inner]
                                use b::c;
                                taken += 1;
                                d(x)
                            }
                            if !ended || taken != 8u32 { break; }
                            p::preempt_point();
                        }
                    }
                };
            }),
        );
    }

    #[test]
    fn what_is_no_loop_is_left_alone() {
        for every in [1, 64] {
            check(
                every,
                quote!(if x {
                    y
                }),
                quote!(if x {
                    y
                }),
            );
        }
    }
}
