//! The attributes `#[gosched::main]` and `#[gosched::test]`.
//!
//! They run a function as the main goroutine of a runtime, so that programs and tests need no code
//! for that.
//!
//! The *function* is the one with the attribute. The *options* are the text in the attribute's
//! parentheses. The *shell* is the generated function that replaces the written one:
//!
//! ```text
//! #[gosched::main(procs = 4)]           fn main() -> ExitCode {
//! fn main() -> R { BODY }         =>        fn main() -> R { BODY }
//!                                           match Runtime::builder().procs(4).build() {
//!                                               Ok(runtime) => runtime.run(|| main().report()),
//!                                               Err(error) => panic!(…),
//!                                           }
//!                                       }
//! ```
//!
//! Three design choices:
//! - The written function moves into the shell unchanged, under its own name. So no added name can
//!   hide a name of the user, and a call of `main` in the body stays in the goroutine. Every token
//!   keeps its position in the source, and so does every error about the body.
//! - The result becomes an exit code inside the goroutine, as std does after `main`. Only that code
//!   crosses threads, so `R` need not be `Send`, and `Result<(), Box<dyn Error>>` works.
//! - A mistake causes only one error. It is reported at its position, and the function is kept
//!   (`Function::rescued`). So the compiler still checks the body, and does not also report a
//!   missing `main`.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::spanned::Spanned as _;
use syn::{
    Attribute, Error, Expr, Lit, Path, ReturnType, Signature, Token, Type, UnOp, Visibility,
};

/// Runs the function as the main goroutine of a runtime with these options.
///
/// # Options
///
/// - `procs = 4`: how many goroutines may run at the same time, as `Builder::procs`.
/// - `stack_size = 64 * 1024`: the maximum stack of a goroutine in bytes, as `Builder::stack_size`.
/// - `crate = "path"`: the path of the library, for a renamed dependency. The default is
///   `::gosched`.
///
/// The first two take any expression of type `usize`.
///
/// # Result
///
/// The function may return any type that implements `Termination`, `Send` or not. Inside the
/// goroutine the value becomes an `ExitCode`, which the attributed function returns.
///
/// # Blocking
///
/// Blocks the calling thread until the body returns. Goroutines that still run then end with their
/// runtime.
///
/// # Panics
///
/// With `gosched: cannot start the runtime: …` and the reason, if the runtime cannot be built with
/// the options. With the body's own panic, if the body panics.
#[proc_macro_attribute]
pub fn main(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand(Kind::Main, options.into(), item.into()).into()
}

/// Runs the function as a test, as the main goroutine of its own runtime.
///
/// A test sees no goroutines of other tests. Other attributes of a test (`should_panic`, `ignore`,
/// `cfg`, …) keep their meaning. The function may return what any test may return, `Send` or not.
///
/// # Options
///
/// - `procs = 4`: how many goroutines may run at the same time, as `Builder::procs`.
/// - `stack_size = 64 * 1024`: the maximum stack of a goroutine in bytes, as `Builder::stack_size`.
/// - `crate = "path"`: the path of the library, for a renamed dependency. The default is
///   `::gosched`.
///
/// The first two take any expression of type `usize`.
///
/// # Blocking
///
/// Blocks the test's thread until the body returns. A test with a deadlock does not hang: its
/// runtime uses `Deadlock::Closed`, which ignores the threads of the harness. It ends the process
/// with a report.
///
/// # Panics
///
/// With the body's own panic, raised again in the test's thread. With `gosched: cannot start the
/// runtime: …` and the reason, if the runtime cannot be built.
#[proc_macro_attribute]
pub fn test(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand(Kind::Test, options.into(), item.into()).into()
}

fn expand(kind: Kind, options: TokenStream, item: TokenStream) -> TokenStream {
    let function = match (|input: ParseStream| Function::parse(kind, input)).parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let error = error.to_compile_error();
            return quote!(#error #item);
        }
    };
    let (options, mut mistakes) = Options::parse(options);
    mistakes.extend(function.mistakes(kind));
    let code = match mistakes.as_slice() {
        [] => function.shell(kind, &options),
        _ => function.rescued(),
    };
    let mistakes = mistakes.iter().map(Error::to_compile_error);
    quote!(#(#mistakes)* #code)
}

/// Which of the two attributes is expanded.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Main,
    Test,
}

impl Kind {
    fn attribute(self) -> &'static str {
        match self {
            Kind::Main => "#[gosched::main]",
            Kind::Test => "#[gosched::test]",
        }
    }
}

/// A function with an unparsed body. The attribute does not need the body, and syntax that `syn`
/// does not know yet passes through.
struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: Signature,
    body: Group,
}

impl Function {
    fn parse(kind: Kind, input: ParseStream) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        if !starts_function(&input.fork()) {
            return Err(input.error(format!("{} goes on a function", kind.attribute())));
        }
        let signature = input.parse::<Signature>()?;
        match input.parse()? {
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => Ok(Function {
                attributes,
                visibility,
                signature,
                body,
            }),
            _ => {
                let text = format!("{} needs a function with a body", kind.attribute());
                Err(Error::new_spanned(signature, text))
            }
        }
    }

    /// All reasons why the written function cannot be run as `kind`.
    fn mistakes(&self, kind: Kind) -> Vec<Error> {
        let attribute = kind.attribute();
        let cannot_run = |what| format!("{attribute} cannot run {what} function");
        let no_arguments = match kind {
            Kind::Main => "`main` takes no arguments: read them with `std::env::args`",
            Kind::Test => "a test takes no arguments",
        };
        let is_test_already = "makes the function a test already: remove this attribute";

        let written = &self.signature;
        let generics = &written.generics;
        let generic = tokens(&generics.params).or_else(|| tokens(&generics.where_clause));
        let second = self.second_test_attribute().filter(|_| kind == Kind::Test);

        [
            (
                tokens(written.asyncness),
                "gosched needs no async: remove it".to_owned(),
            ),
            (tokens(written.constness), cannot_run("a `const`")),
            (tokens(written.unsafety), cannot_run("an `unsafe`")),
            (tokens(&written.abi), cannot_run("an `extern`")),
            (generic, cannot_run("a generic")),
            (tokens(&written.inputs), no_arguments.to_owned()),
            (tokens(second), format!("{attribute} {is_test_already}")),
        ]
        .into_iter()
        .filter_map(|(place, text)| Some(Error::new_spanned(place?, text)))
        .collect()
    }

    /// An attribute that would make the harness run the function a second time.
    fn second_test_attribute(&self) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| {
            let name = attribute.path().segments.last();
            name.is_some_and(|name| name.ident == "test")
        })
    }

    /// The replacement of a function without mistakes.
    fn shell(&self, kind: Kind, options: &Options) -> TokenStream {
        let name = &self.signature.ident;
        let mut outer = self.signature.clone();
        let main_goroutine = match &self.signature.output {
            ReturnType::Type(_, result) if !is_plain(result) => {
                outer.output = syn::parse_quote!(-> ::std::process::ExitCode);
                // An unsuitable result type is reported at that type.
                let at_result = Span::call_site().located_at(result.span());
                quote_spanned!(at_result=> || ::std::process::Termination::report(#name()))
            }
            _ => quote!(#name),
        };
        let test = match kind {
            Kind::Main => quote!(),
            Kind::Test => quote!(#[::core::prelude::v1::test]),
        };
        let run = options.run(kind, &main_goroutine);
        self.wrapped(test, outer.to_token_stream(), run)
    }

    /// The replacement of a function next to an error. Any function may be nested in another, where
    /// it is checked and never called.
    fn rescued(&self) -> TokenStream {
        let name = &self.signature.ident;
        self.wrapped(quote!(#[allow(unused)]), quote!(fn #name()), quote!())
    }

    /// The attributes go to the outer function. Attributes for the harness or the linker belong
    /// there, and lint levels also apply to nested items.
    fn wrapped(&self, first: TokenStream, outer: TokenStream, last: TokenStream) -> TokenStream {
        let (attributes, visibility) = (&self.attributes, &self.visibility);
        let (signature, body) = (&self.signature, &self.body);
        quote! {
            #first
            #(#attributes)*
            #visibility #outer {
                #signature #body
                #last
            }
        }
    }
}

/// Whether `fn` comes next, after the keywords that may precede it.
fn starts_function(input: ParseStream) -> bool {
    fn skip(input: ParseStream) -> syn::Result<()> {
        input.parse::<Option<Token![const]>>()?;
        input.parse::<Option<Token![async]>>()?;
        input.parse::<Option<Token![unsafe]>>()?;
        input.parse::<Option<syn::Abi>>()?;
        Ok(())
    }
    skip(input).is_ok() && input.peek(Token![fn])
}

/// The tokens at this place, if any.
fn tokens(place: impl ToTokens) -> Option<TokenStream> {
    Some(place.into_token_stream()).filter(|tokens| !tokens.is_empty())
}

/// Whether the result is `()` or `!`, which need no exit code. `should_panic` requires `()`.
fn is_plain(result: &Type) -> bool {
    match result {
        Type::Tuple(tuple) => tuple.elems.is_empty(),
        Type::Never(_) => true,
        _ => false,
    }
}

/// The end of every error about an option.
const KNOWN: &str = "known options: `procs = 4`, `stack_size = 65536`, `crate = \"path\"`";

/// The options of one attribute, each at most once.
#[derive(Default)]
struct Options {
    procs: Option<Expr>,
    stack_size: Option<Expr>,
    library: Option<Path>,
}

impl Options {
    /// Parses all options, continues after wrong ones, and returns the mistakes.
    fn parse(tokens: TokenStream) -> (Self, Vec<Error>) {
        let mut options = Options::default();
        let mut mistakes = Vec::new();
        let read_all = |input: ParseStream| {
            while !input.is_empty() {
                if let Err(mistake) = options.read_one(input) {
                    mistakes.push(mistake);
                    while !input.is_empty() && !input.peek(Token![,]) {
                        input.parse::<TokenTree>()?;
                    }
                }
                input.parse::<Option<Token![,]>>()?;
            }
            Ok(())
        };
        if let Err(mistake) = read_all.parse2(tokens) {
            mistakes.push(mistake);
        }
        (options, mistakes)
    }

    /// Parses `key = value` up to the comma or the end.
    fn read_one(&mut self, input: ParseStream) -> syn::Result<()> {
        let key = match input.call(Ident::parse_any) {
            Ok(key) => key,
            Err(_) => return Err(input.error(format!("expected an option; {KNOWN}"))),
        };
        let name = key.to_string();
        let complain = |text: String| Err(Error::new(key.span(), format!("{text}; {KNOWN}")));
        let number = match name.as_str() {
            "procs" => Some(&mut self.procs),
            "stack_size" => Some(&mut self.stack_size),
            "crate" => None,
            _ => return complain(format!("unknown option `{name}`")),
        };
        let is_second = match &number {
            Some(number) => number.is_some(),
            None => self.library.is_some(),
        };
        if is_second {
            return complain(format!("option `{name}` is given twice"));
        }
        let value = match input.parse::<Token![=]>().and_then(|_| input.parse()) {
            Ok(value) => bare(value),
            Err(_) => return complain(format!("option `{name}` needs a value")),
        };
        match (number, library(&value)) {
            (Some(number), _) if may_be_usize(&value) => *number = Some(value),
            (Some(_), _) => return complain(format!("option `{name}` takes a `usize`")),
            (None, None) => return complain("option `crate` takes a path in quotes".to_owned()),
            (None, library) => self.library = library,
        }
        if input.is_empty() || input.peek(Token![,]) {
            return Ok(());
        }
        Err(input.error(format!("expected `,` after `{name}`; {KNOWN}")))
    }

    /// The expression that runs `main_goroutine` in a runtime with these options.
    fn run(&self, kind: Kind, main_goroutine: &TokenStream) -> TokenStream {
        let library = match &self.library {
            Some(path) => path.to_token_stream(),
            None => quote!(::gosched),
        };
        let mut settings = TokenStream::new();
        if let Some(value) = &self.procs {
            settings.extend(quote!(.procs(#value)));
        }
        if let Some(value) = &self.stack_size {
            settings.extend(quote!(.stack_size(#value)));
        }
        if kind == Kind::Test {
            settings.extend(quote!(.deadlock(#library::Deadlock::Closed)));
        }
        if settings.is_empty() {
            return quote!(#library::run(#main_goroutine));
        }
        // A binding with the name of a user's constant would become a comparison. These names are
        // unlikely to be constants.
        quote! {
            match #library::Runtime::builder() #settings .build() {
                ::core::result::Result::Ok(__gosched_runtime) => {
                    __gosched_runtime.run(#main_goroutine)
                }
                ::core::result::Result::Err(__gosched_error) => ::core::panic!(
                    "gosched: cannot start the runtime: {}",
                    __gosched_error,
                ),
            }
        }
    }
}

/// Removes the invisible groups that `macro_rules!` puts around a value.
fn bare(mut value: Expr) -> Expr {
    while let Expr::Group(group) = value {
        value = *group.expr;
    }
    value
}

/// False only for a value that can never be a `usize`. The compiler checks the rest.
fn may_be_usize(value: &Expr) -> bool {
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(n) => matches!(n.suffix(), "" | "usize") && n.base10_parse::<usize>().is_ok(),
            _ => false,
        },
        Expr::Unary(operation) => !matches!(operation.op, UnOp::Neg(_)),
        _ => true,
    }
}

/// The path in the quotes, if the value is a path in quotes.
fn library(value: &Expr) -> Option<Path> {
    let Expr::Lit(literal) = value else {
        return None;
    };
    match &literal.lit {
        Lit::Str(text) => text.parse_with(Path::parse_mod_style).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    // Not `use super::*`: that would import the `test` defined here.
    use super::{Delimiter, Error, Expr, Function, Group, KNOWN, Kind, Options};
    use super::{ParseStream, ToTokens, TokenStream, expand, quote};
    use syn::parse::Parser as _;

    fn parse(options: &str) -> (Options, Vec<String>) {
        let (options, mistakes) = Options::parse(options.parse().unwrap());
        (options, mistakes.iter().map(Error::to_string).collect())
    }

    /// Parses options that must be correct.
    fn right(options: &str) -> Options {
        let (options, mistakes) = parse(options);
        assert_eq!(mistakes, [""; 0]);
        options
    }

    /// Parses options that must have one mistake, with the usual end of the error.
    fn wrong(options: &str) -> String {
        let (_, mistakes) = parse(options);
        assert_eq!(mistakes.len(), 1, "{options}: {mistakes:?}");
        let text = mistakes[0].strip_suffix(KNOWN).expect("known options");
        text.trim_end_matches("; ").to_owned()
    }

    #[test]
    fn no_options() {
        let options = right("");
        assert!(options.procs.is_none() && options.stack_size.is_none());
        assert!(options.library.is_none());
    }

    #[test]
    fn all_options_in_any_order_with_a_trailing_comma() {
        let options = right("crate = \"a::b\", stack_size = 64 * 1024, procs = 4,");
        assert_eq!(text(options.procs), "4");
        assert_eq!(text(options.stack_size), "64 * 1024");
        assert_eq!(text(options.library), "a :: b");
    }

    #[test]
    fn numbers_in_every_notation_and_expressions() {
        for value in ["4usize", "0x1_0000", "LIMIT", "1 << 16", "f (1 , 2)"] {
            let options = right(&format!("procs = {value}"));
            assert_eq!(text(options.procs), value);
        }
    }

    #[test]
    fn a_value_from_macro_rules_is_unwrapped() {
        let four = Group::new(Delimiter::None, quote!(4));
        let path = Group::new(Delimiter::None, quote!("a"));
        let (options, mistakes) = Options::parse(quote!(procs = #four, crate = #path));
        assert!(mistakes.is_empty());
        assert!(matches!(options.procs, Some(Expr::Lit(_))));
        assert_eq!(text(options.library), "a");
    }

    #[test]
    fn paths_of_every_beginning() {
        for path in ["::renamed", "crate::a::b", "self::a", "super::a", "renamed"] {
            let library = right(&format!("crate = {path:?}")).library;
            assert_eq!(text(library).replace(' ', ""), path);
        }
    }

    #[test]
    fn an_unknown_option() {
        for options in ["threads = 4", "procs = 4, threads", "threads(4), procs = 4"] {
            assert_eq!(wrong(options), "unknown option `threads`");
        }
    }

    #[test]
    fn an_option_given_twice() {
        let cases = [
            ("procs = 1, procs = 2", "procs"),
            ("stack_size = 1, procs = 1, stack_size = 1", "stack_size"),
            ("crate = \"a\", crate = \"b\"", "crate"),
        ];
        for (options, key) in cases {
            assert_eq!(wrong(options), format!("option `{key}` is given twice"));
        }
    }

    #[test]
    fn a_number_that_is_none() {
        for value in "\"x\" 'x' 1.5 true -1 4u8 99999999999999999999".split(' ') {
            let options = format!("stack_size = {value}");
            assert_eq!(wrong(&options), "option `stack_size` takes a `usize`");
        }
    }

    #[test]
    fn a_path_that_is_none() {
        for value in ["gosched", "4", "\"\"", "\"a b\"", "\"a::\""] {
            let options = format!("crate = {value}");
            assert_eq!(wrong(&options), "option `crate` takes a path in quotes");
        }
    }

    #[test]
    fn a_key_without_a_value() {
        for options in ["procs", "procs =", "procs(4)", "procs, stack_size = 1"] {
            assert_eq!(wrong(options), "option `procs` needs a value");
        }
    }

    #[test]
    fn something_that_is_no_option() {
        for options in ["4", "\"procs\"", ",", "= 4", "procs = 4,,"] {
            assert_eq!(wrong(options), "expected an option");
        }
        let without_comma = "procs = 4 stack_size = 5";
        assert_eq!(wrong(without_comma), "expected `,` after `procs`");
    }

    #[test]
    fn every_mistake_is_named_and_the_rest_is_read() {
        let (options, mistakes) = parse("a = 1, procs = \"x\", crate = 3, procs = 7");
        assert_eq!(mistakes.len(), 3);
        assert_eq!(text(options.procs), "7");
    }

    /// The mistakes of a function with correct options.
    fn objections(kind: Kind, item: &str) -> Vec<String> {
        let mistakes = match (|input: ParseStream| Function::parse(kind, input)).parse_str(item) {
            Ok(function) => function.mistakes(kind),
            Err(mistake) => vec![mistake],
        };
        mistakes.iter().map(Error::to_string).collect()
    }

    #[test]
    fn functions_that_cannot_be_run() {
        let cases = [
            ("const fn main() {}", "a `const`"),
            ("unsafe fn main() {}", "an `unsafe`"),
            ("extern \"C\" fn main() {}", "an `extern`"),
            ("fn main<T>() {}", "a generic"),
            ("fn main() where u8: Copy {}", "a generic"),
        ];
        for (item, what) in cases {
            let expected = format!("#[gosched::main] cannot run {what} function");
            assert_eq!(objections(Kind::Main, item), [expected]);
        }
        let expected = "#[gosched::main] needs a function with a body";
        assert_eq!(objections(Kind::Main, "fn main();"), [expected]);
        let expected = "`main` takes no arguments: read them with `std::env::args`";
        assert_eq!(objections(Kind::Main, "fn main(n: u32) {}"), [expected]);
    }

    #[test]
    fn items_that_are_no_functions() {
        for item in ["struct S;", "pub const N: u8 = 4;", "unsafe extern {}"] {
            let expected = "#[gosched::main] goes on a function";
            assert_eq!(objections(Kind::Main, item), [expected]);
        }
    }

    #[test]
    fn every_mistake_is_named() {
        let mistakes = objections(Kind::Test, "async fn t(&self) {}");
        assert_eq!(mistakes[0], "gosched needs no async: remove it");
        assert_eq!(mistakes[1..], ["a test takes no arguments"]);
    }

    #[test]
    fn a_second_test_attribute() {
        let expected = "#[gosched::test] makes the function a test already: remove this attribute";
        for attribute in ["#[test]", "#[core::prelude::v1::test]", "#[other::test]"] {
            let item = format!("{attribute} fn t() {{}}");
            assert_eq!(objections(Kind::Test, &item), [expected]);
            assert_eq!(objections(Kind::Main, &item), [""; 0]);
        }
    }

    fn text(tokens: impl ToTokens) -> String {
        tokens.into_token_stream().to_string()
    }

    fn expanded(kind: Kind, options: &str, item: &str) -> String {
        let [options, item] = [options, item].map(|text| text.parse().unwrap());
        text(expand(kind, options, item))
    }

    fn built_and_run(builder: TokenStream, body: TokenStream) -> TokenStream {
        quote! {
            match #builder.build() {
                ::core::result::Result::Ok(__gosched_runtime) => {
                    __gosched_runtime.run(#body)
                }
                ::core::result::Result::Err(__gosched_error) => ::core::panic!(
                    "gosched: cannot start the runtime: {}",
                    __gosched_error,
                ),
            }
        }
    }

    #[test]
    fn main_without_options() {
        let code = expanded(Kind::Main, "", "pub(crate) fn main() { body() }");
        let expected = quote! {
            pub(crate) fn main() {
                fn main() { body() }
                ::gosched::run(main)
            }
        };
        assert_eq!(code, text(expected));
    }

    #[test]
    fn main_with_options_and_a_result() {
        let options = "procs = 4, stack_size = 5, crate = \"own\"";
        let code = expanded(Kind::Main, options, "fn main() -> R { body() }");
        let run = built_and_run(
            quote!(own::Runtime::builder().procs(4).stack_size(5)),
            quote!(|| ::std::process::Termination::report(main())),
        );
        let expected = quote! {
            fn main() -> ::std::process::ExitCode {
                fn main() -> R { body() }
                #run
            }
        };
        assert_eq!(code, text(expected));
    }

    #[test]
    fn a_test_keeps_every_attribute_in_order() {
        let attributes = quote! {
            #[doc = "Why."]
            #[ignore = "slow"]
            #[should_panic(expected = "x")]
            #[cfg(unix)]
            #[allow(dead_code)]
        };
        let function = quote!(
            fn t() -> () {
                #![allow(unused)]
            }
        );
        let code = expand(Kind::Test, quote!(), quote!(#attributes #function));
        let run = built_and_run(
            quote!(::gosched::Runtime::builder().deadlock(::gosched::Deadlock::Closed)),
            quote!(t),
        );
        let expected = quote! {
            #[::core::prelude::v1::test]
            #attributes
            fn t() -> () {
                #function
                #run
            }
        };
        assert_eq!(text(code), text(expected));
    }

    #[test]
    fn a_mistake_keeps_the_function_and_runs_nothing() {
        let item = "#[ignore] async fn t(n: u8) { body() }";
        let code = expanded(Kind::Test, "a = 1", item);
        assert_eq!(code.matches("compile_error").count(), 3);
        let expected = text(quote! {
            #[allow(unused)]
            #[ignore]
            fn t() {
                async fn t(n: u8) { body() }
            }
        });
        assert!(code.ends_with(&expected), "{code}");
    }

    #[test]
    fn an_item_that_is_no_function_is_kept() {
        let code = expanded(Kind::Main, "", "struct S;");
        assert_eq!(code.matches("compile_error").count(), 1);
        assert!(code.ends_with("struct S ;"), "{code}");
    }
}
