//! What the client asks for: the routes of `examples/web`, and how often each.

use anyhow::Result;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_workload::{Arrival, Class, Mix, ServiceTime};

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

/// The smallest number of requests in which each route has its share.
const BLOCK: usize = 200;

/// At least so many requests without moments, a block after the other, each in an order of its own.
/// So a server that answers fewer of them has had the same mix as one that answers more.
pub fn in_blocks(requests: usize, seed: u64) -> Vec<Arrival> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let all: f64 = ROUTES.iter().map(|route| route.weight).sum();
    let mut block: Vec<u16> = Vec::new();
    for (class, route) in (0..).zip(&ROUTES) {
        let count = (route.weight / all * BLOCK as f64).round() as usize;
        block.extend(std::iter::repeat_n(class, count));
    }
    let mut arrivals = Vec::with_capacity(requests + BLOCK);
    while arrivals.len() < requests {
        block.shuffle(&mut random);
        arrivals.extend(block.iter().map(|&class| Arrival {
            at_ns: 0,
            service_ns: 1,
            flow: 0,
            class,
        }));
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_the_mix() {
        let sent = in_blocks(1_000, 7);
        assert_eq!(sent.len(), 1_000);
        let counts = |block: &[Arrival]| {
            let of = |class| block.iter().filter(|one| one.class == class).count();
            [0, 1, 2, 3, 4].map(of)
        };
        let blocks: Vec<_> = sent.chunks(BLOCK).map(counts).collect();
        assert_eq!(blocks, [[140, 48, 6, 3, 3]; 5]);
        assert_ne!(
            sent[..BLOCK],
            sent[BLOCK..2 * BLOCK],
            "each in its own order"
        );
        assert_ne!(sent, in_blocks(1_000, 8));
    }

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
