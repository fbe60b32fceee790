//! How a request is to be treated: its class, or more.

use std::borrow::Cow;
use std::fmt;

use http::{HeaderName, HeaderValue, Method, Request};
use shinjuku::RunOptions;

/// Says how a request is to be treated. [`Rules`] and closures implement this: a closure takes a
/// request and gives a class, or whole [`RunOptions`].
///
/// ```
/// use shinjuku::RunOptions;
/// use shinjuku_tower::Classify;
/// use std::time::Duration;
///
/// fn takes_any(_: impl Classify<http::Request<Vec<u8>>>) {}
///
/// takes_any(|request: &http::Request<Vec<u8>>| match request.body().len() {
///     0..1000 => RunOptions::new("interactive").deadline(Duration::from_millis(50)),
///     _ => RunOptions::new("batch"),
/// });
/// ```
pub trait Classify<Request>: Send + Sync + 'static {
    /// How `request` is to be treated.
    fn classify(&self, request: &Request) -> RunOptions<'_>;
}

impl<Request, F, Options> Classify<Request> for F
where
    F: Fn(&Request) -> Options + Send + Sync + 'static,
    Options: Into<RunOptions<'static>>,
{
    fn classify(&self, request: &Request) -> RunOptions<'_> {
        self(request).into()
    }
}

/// Classes of HTTP requests by path, method or header. The first rule that fits decides. The pool
/// refuses a request whose class it does not have.
///
/// ```
/// use http::{HeaderName, HeaderValue, Method};
/// use shinjuku_tower::Rules;
///
/// let rules = Rules::otherwise("interactive")
///     .path("/health", "interactive")
///     .header(
///         HeaderName::from_static("x-batch"),
///         HeaderValue::from_static("yes"),
///         "batch",
///     )
///     .path("/report", "batch")
///     .method(Method::POST, "batch");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Rules {
    rules: Vec<(Rule, Name)>,
    otherwise: Name,
}

type Name = Cow<'static, str>;

#[derive(Clone, Debug)]
enum Rule {
    Path(Name),
    Method(Method),
    Header(HeaderName, HeaderValue),
}

impl Rule {
    fn fits<Body>(&self, request: &Request<Body>) -> bool {
        match self {
            Self::Path(path) => {
                (request.uri().path().strip_prefix(path.as_ref())).is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with('/') || path.ends_with('/')
                })
            }
            Self::Method(method) => request.method() == method,
            Self::Header(name, value) => request
                .headers()
                .get_all(name)
                .iter()
                .any(|given| given == value),
        }
    }
}

impl Rules {
    /// Begins with no rule: `class` is that of requests that no rule fits.
    pub fn otherwise(class: impl Into<Cow<'static, str>>) -> Self {
        Self {
            rules: Vec::new(),
            otherwise: class.into(),
        }
    }

    /// Adds a rule for requests of this path and of all below it: `/search` fits `/search` and
    /// `/search/all`, not `/searching`.
    pub fn path(
        self,
        path: impl Into<Cow<'static, str>>,
        class: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.rule(Rule::Path(path.into()), class.into())
    }

    /// Adds a rule for requests of this method.
    pub fn method(self, method: Method, class: impl Into<Cow<'static, str>>) -> Self {
        self.rule(Rule::Method(method), class.into())
    }

    /// Adds a rule for requests with a header of this name and exactly this value.
    pub fn header(
        self,
        name: HeaderName,
        value: HeaderValue,
        class: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.rule(Rule::Header(name, value), class.into())
    }

    fn rule(mut self, rule: Rule, class: Name) -> Self {
        self.rules.push((rule, class));
        self
    }
}

impl<Body> Classify<Request<Body>> for Rules {
    fn classify(&self, request: &Request<Body>) -> RunOptions<'_> {
        let rule = self.rules.iter().find(|(rule, _)| rule.fits(request));
        let class = rule.map_or(&self.otherwise, |(_, class)| class);
        RunOptions::from(class.as_ref())
    }
}

/// The rules in their order, for a log.
impl fmt::Display for Rules {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rule, class) in &self.rules {
            match rule {
                Rule::Path(path) => write!(formatter, "{path}"),
                Rule::Method(method) => write!(formatter, "{method}"),
                Rule::Header(name, value) => write!(formatter, "{name}: {value:?}"),
            }?;
            write!(formatter, " -> {class}; ")?;
        }
        write!(formatter, "else {}", self.otherwise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = Rules::otherwise("else")
            .path("/health", "health")
            .header(
                HeaderName::from_static("x-batch"),
                HeaderValue::from_static("yes"),
                "header",
            )
            .path("/files/", "files")
            .method(Method::POST, "post");
        let class = |method: &str, path: &str, header: &str| {
            let request = Request::builder().method(method).uri(path);
            let request = request.header("x-batch", header).body(()).unwrap();
            format!("{:?}", rules.classify(&request))
        };
        for (method, path, header, expected) in [
            ("GET", "/health", "yes", "health"),
            ("GET", "/health/deep?q=1", "no", "health"),
            ("GET", "/healthy", "yes", "header"),
            ("POST", "/files/a", "no", "files"),
            ("POST", "/files", "no", "post"),
            ("GET", "/", "no", "else"),
        ] {
            let options = class(method, path, header);
            assert!(options.contains(&format!("{expected:?}")), "{options}");
        }
        assert_eq!(
            rules.to_string(),
            "/health -> health; x-batch: \"yes\" -> header; /files/ -> files; POST -> post; else else"
        );
    }
}
