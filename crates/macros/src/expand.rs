//! From the attribute's tokens to the function's: checks the annotated item, or says what is wrong.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::visit_mut::VisitMut;
use syn::{Error, Item, ItemFn, Result, TraitItemFn};

use crate::arguments::Arguments;
use crate::instrument::Instrument;

/// The annotated function with its probes; or the unchanged item and a `compile_error!`, so that
/// one mistake does not cause a second error about a missing item.
pub fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    try_expand(arguments, item.clone()).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote!(#error #item)
    })
}

fn try_expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let arguments: Arguments = syn::parse2(arguments)?;
    let mut function = function(item)?;
    preemptible(&arguments, &mut function)?;
    Ok(function.into_token_stream())
}

/// Methods parse as functions too: the grammar of `self` parameters is the same.
fn function(item: TokenStream) -> Result<ItemFn> {
    syn::parse2(item.clone()).map_err(|error| {
        if syn::parse2::<TraitItemFn>(item.clone()).is_ok() {
            Error::new_spanned(
                item,
                "a method without a body has no loops: put `#[preemptible]` on its implementations",
            )
        } else if matches!(
            syn::parse2(item.clone()),
            Ok(Item::Impl(_) | Item::Trait(_) | Item::Mod(_))
        ) {
            Error::new_spanned(
                item,
                "`#[preemptible]` goes on a function: put it on each function in here that loops",
            )
        } else if syn::parse2::<Item>(item.clone()).is_ok() {
            Error::new_spanned(item, "`#[preemptible]` goes on a function or a method")
        } else {
            error
        }
    })
}

/// Puts the probes into `function`.
///
/// # Errors
/// If it is `async` or `const`.
pub fn preemptible(arguments: &Arguments, function: &mut ItemFn) -> Result<()> {
    if let Some(token) = &function.sig.asyncness {
        return Err(Error::new_spanned(
            token,
            "an `async fn` gets no probes, for it runs wherever its future is polled: move its long loops into a \
             plain function, and put `#[preemptible]` there",
        ));
    }
    if let Some(token) = &function.sig.constness {
        return Err(Error::new_spanned(
            token,
            "a `const fn` cannot hold a probe, which reads a thread-local: remove `const`, or `#[preemptible]`",
        ));
    }
    Instrument::new(arguments).visit_block_mut(&mut function.block);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(item: TokenStream) -> String {
        expand(quote!(crate = p), item).to_string()
    }

    #[test]
    fn functions_and_methods_of_every_kind_are_taken() {
        for item in [
            quote!(
                fn f() {
                    loop {}
                }
            ),
            quote!(
                pub(crate) unsafe extern "C" fn f<T: Copy>(t: T) -> !
                where
                    T: Send,
                {
                    loop {}
                }
            ),
            quote!(
                fn f(&mut self, (a, _): (u8, u8)) {
                    loop {}
                }
            ),
            quote!(
                #[inline]
                fn f(self: Box<Self>) {
                    #![allow(unused)]
                    loop {}
                }
            ),
        ] {
            let text = expanded(item.clone());
            assert!(!text.contains("compile_error"), "{item}: {text}");
            assert!(text.contains("loop { p :: preempt_point () ; }"), "{text}");
        }
    }

    #[test]
    fn a_wrong_item_is_kept_and_told_what_to_do() {
        for (item, advice) in [
            (
                quote!(
                    async fn f() {}
                ),
                "move its long loops into a plain function",
            ),
            (
                quote!(
                    const fn f() {}
                ),
                "remove `const`",
            ),
            (
                quote!(
                    fn f(&self);
                ),
                "on its implementations",
            ),
            (quote!(impl S { fn f() {} }), "on each function in here"),
            (
                quote!(
                    struct S;
                ),
                "on a function or a method",
            ),
        ] {
            let text = expanded(item.clone());
            assert!(
                text.contains("compile_error") && text.contains(advice),
                "{text}"
            );
            assert!(text.ends_with(&item.to_string()), "{text}");
        }
    }

    #[test]
    fn wrong_arguments_keep_the_item_too() {
        let text = expand(
            quote!(every = 0),
            quote!(
                fn f() {}
            ),
        )
        .to_string();
        assert!(
            text.contains("would never probe") && text.ends_with("fn f () { }"),
            "{text}"
        );
    }
}
