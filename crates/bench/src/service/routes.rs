//! What the client asks for: the routes of `examples/web`, and how often each.

use anyhow::Result;
use shinjuku_workload::{Class, Mix, ServiceTime};

/// A route with the one request that is sent to it.
#[derive(Debug)]
pub struct Route {
    /// Its name in results.
    pub name: &'static str,
    /// `GET` unless there is a form to `POST`.
    pub path: &'static str,
    pub form: Option<&'static str>,
    /// Whether this is the reply's body.
    pub is_right: fn(&[u8]) -> bool,
    /// Out of a thousand requests.
    weight: f64,
    /// About how long it computes, by which the routes are in order; nothing is derived of it.
    about_us: f64,
}

/// From short to long.
pub const ROUTES: [Route; 5] = [
    Route {
        name: HEALTH,
        path: "/health",
        form: None,
        is_right: |body| body == b"ok\n",
        weight: 700.0,
        about_us: 1.0,
    },
    Route {
        name: RANGE,
        path: "/range?from=key-004200&count=20",
        form: None,
        is_right: |body| body.starts_with(b"key-004200 17640000\n") && lines(body) == 20,
        weight: 240.0,
        about_us: 20.0,
    },
    Route {
        name: "search",
        path: "/search?q=(ab)%2Bc",
        form: None,
        is_right: |body| {
            let count = body.strip_suffix(b"\n").unwrap_or_default();
            !count.starts_with(b"0") && !count.is_empty() && count.iter().all(u8::is_ascii_digit)
        },
        weight: 30.0,
        about_us: 8_000.0,
    },
    Route {
        name: "image",
        path: "/image?width=300",
        form: None,
        is_right: |body| body.starts_with(b"\x89PNG") && body.len() > 1_000,
        weight: 15.0,
        about_us: 12_000.0,
    },
    Route {
        name: "login",
        path: "/login",
        form: Some("user=alice&password=wonderland"),
        is_right: <[u8]>::is_empty,
        weight: 15.0,
        about_us: 30_000.0,
    },
];

fn lines(body: &[u8]) -> usize {
    body.iter().filter(|&&byte| byte == b'\n').count()
}

/// The short routes, about which there are targets.
pub const HEALTH: &str = "health";
pub const RANGE: &str = "range";
pub const SHORT: [&str; 2] = [HEALTH, RANGE];

/// The routes as classes of a mix.
///
/// # Errors
/// A weight or a time is out of range.
pub fn mix() -> Result<Mix> {
    let class = |route: &Route| {
        let service = ServiceTime::fixed(route.about_us)?;
        Ok(Class::new(route.name, route.weight, service))
    };
    let classes: Result<Vec<_>> = ROUTES.iter().map(class).collect();
    Ok(Mix::new("service", classes?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routes_are_a_mix() {
        let mix = mix().unwrap();
        assert_eq!(mix.classes().len(), ROUTES.len());
        assert!(
            SHORT
                .iter()
                .all(|name| ROUTES.iter().any(|route| route.name == *name))
        );
        let shares = (0..ROUTES.len() as u16).map(|class| mix.share(class));
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
