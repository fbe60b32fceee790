//! Finds the loops of a function that need a probe.

use std::num::NonZeroU32;

use syn::visit_mut::{self, VisitMut};
use syn::{
    AngleBracketedGenericArguments, Expr, ExprAsync, ExprClosure, ExprConst, ExprRepeat, Item, Pat,
    Type,
};

use crate::arguments::Arguments;
use crate::back_edge::Probe;

/// A pass over a function's body that instruments every loop which runs as part of the function.
/// That includes the loops of its closures, but not those of items, `async` code and constants
/// inside it.
pub struct Instrument {
    probe: Probe,
    every: NonZeroU32,
    /// Loops met so far. A loop contains another one if the count grows while its parts are
    /// visited.
    loops: usize,
}

impl Instrument {
    pub fn new(arguments: &Arguments) -> Self {
        Self {
            probe: Probe::new(&arguments.krate),
            every: arguments.every,
            loops: 0,
        }
    }
}

impl VisitMut for Instrument {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let before = self.loops;
        visit_mut::visit_expr_mut(self, expr);
        if !matches!(expr, Expr::ForLoop(_) | Expr::While(_) | Expr::Loop(_)) {
            return;
        }
        let innermost = self.loops == before;
        self.loops += 1;
        // With thinned-out probes in nested loops the distances would multiply: `every * every`
        // iterations could pass without a probe.
        let every = if innermost {
            self.every
        } else {
            NonZeroU32::MIN
        };
        self.probe.insert(expr, every);
    }

    fn visit_expr_closure_mut(&mut self, closure: &mut ExprClosure) {
        if closure.asyncness.is_none() && closure.constness.is_none() {
            visit_mut::visit_expr_closure_mut(self, closure);
        }
    }

    fn visit_expr_repeat_mut(&mut self, repeat: &mut ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr); // the length is a constant
    }

    fn visit_expr_async_mut(&mut self, _: &mut ExprAsync) {}
    fn visit_item_mut(&mut self, _: &mut Item) {}

    // The compiler evaluates constants, and a probe cannot be called there.
    fn visit_expr_const_mut(&mut self, _: &mut ExprConst) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_angle_bracketed_generic_arguments_mut(
        &mut self,
        _: &mut AngleBracketedGenericArguments,
    ) {
    }
}

#[cfg(test)]
mod tests {
    use proc_macro2::TokenStream;
    use quote::{ToTokens, quote};
    use syn::{Block, parse_quote};

    use super::*;

    fn instrumented(arguments: TokenStream, body: TokenStream) -> String {
        let mut block: Block = parse_quote!({ #body });
        Instrument::new(&parse_quote!(crate = p, #arguments)).visit_block_mut(&mut block);
        block.into_token_stream().to_string()
    }

    fn probes(arguments: TokenStream, body: TokenStream) -> usize {
        instrumented(arguments, body)
            .matches("preempt_point")
            .count()
    }

    #[test]
    fn loops_of_every_kind_and_place_get_one_probe() {
        for body in [
            quote!(loop {}),
            quote!(while a {}),
            quote!(while let Some(x) = a.next() {}),
            quote!(for x in a {}),
            quote!(let x = 'a: loop { break 'a 1 };),
            quote!(f(
                loop {
                    break 1;
                },
                2
            )),
            quote!(let f = move |x| for y in x {};),
            quote!(unsafe { loop {} }),
            quote!(let Some(x) = (loop { break y }) else { return };),
            quote!(match a {
                1 => loop {},
                _ => {}
            }),
            quote!(
                [loop {
                    break 0;
                }; 4]
            ),
        ] {
            for every in [1u32, 64] {
                assert_eq!(probes(quote!(every = #every), body.clone()), 1, "{body}");
            }
        }
        assert_eq!(
            probes(
                quote!(),
                quote!(for x in loop {
                    break y;
                } {
                    while z {
                        loop {}
                    }
                })
            ),
            4
        );
    }

    #[test]
    fn what_runs_elsewhere_is_left_alone() {
        for body in [
            quote!(
                fn g() {
                    loop {}
                }
            ),
            quote!(
                const X: u8 = loop {
                    break 1;
                };
            ),
            quote!(async { loop {} }),
            quote!(async move |x| loop {}),
            quote!(
                const {
                    loop {
                        break 1;
                    }
                }
            ),
            quote!(
                [0; loop {
                    break 4;
                }]
            ),
            quote!(let x: [u8; loop { break 4 }] = y;),
            quote!(f::<
                {
                    loop {
                        break 4;
                    }
                },
            >()),
            quote!(m!(loop {})),
            quote!(m! { loop {} }),
            quote!(impl S { fn g() { loop {} } }),
        ] {
            let before: Block = parse_quote!({ #body });
            assert_eq!(
                instrumented(quote!(), body),
                before.into_token_stream().to_string()
            );
        }
    }

    #[test]
    fn only_innermost_loops_are_thinned_out() {
        let text = instrumented(
            quote!(every = 8),
            quote!(while a {
                while b {
                    c()
                }
            }),
        );
        assert!(
            text.starts_with("{ while a { p :: preempt_point () ; { let mut"),
            "{text}"
        );
        assert_eq!(text.matches("8u32").count(), 1, "{text}");
        // Adjacent loops are no nest.
        let text = instrumented(quote!(every = 8), quote!(while a { b() } while c { d() }));
        assert_eq!(text.matches("8u32").count(), 2, "{text}");
    }
}
