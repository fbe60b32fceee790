//! Closed forms of queueing theory that the simulator is checked against.
//!
//! Times are in the unit of the mean service time given; loads are a share of all servers'
//! capacity. All formulas need Poisson arrivals and a load below 1. Pollaczek and Khinchine's
//! formula is [`shinjuku_workload::lindley::mean_wait_ns`].
//!
//! Sources: Kleinrock, *Queueing Systems*, volumes 1 and 2; Mitzenmacher, *The Power of Two Choices
//! in Randomized Load Balancing*, IEEE TPDS 2001.

/// The probability that a request waits in M/M/c (Erlang's C formula).
#[must_use]
pub fn erlang_c(servers: usize, load: f64) -> f64 {
    let offered = load * servers as f64;
    // Erlang's B, by its recursion over the number of servers, which neither over- nor underflows.
    let blocking = (1..=servers).fold(1.0, |b, n| offered * b / (n as f64 + offered * b));
    blocking / (1.0 - load * (1.0 - blocking))
}

/// The mean waiting time in M/M/c.
#[must_use]
pub fn mm_mean_wait(servers: usize, load: f64, mean_service: f64) -> f64 {
    erlang_c(servers, load) * mean_service / (servers as f64 * (1.0 - load))
}

/// The waiting time in M/M/c at a quantile between 0 and 1; zero for quantiles up to the share of
/// requests that do not wait.
#[must_use]
pub fn mm_wait_quantile(servers: usize, load: f64, mean_service: f64, quantile: f64) -> f64 {
    let waits = erlang_c(servers, load);
    let rate = servers as f64 * (1.0 - load) / mean_service;
    ((waits / (1.0 - quantile)).ln() / rate).max(0.0)
}

/// The probability that the sojourn time in M/M/c exceeds `time`.
#[must_use]
pub fn mm_sojourn_tail(servers: usize, load: f64, mean_service: f64, time: f64) -> f64 {
    let waits = erlang_c(servers, load);
    let service = 1.0 / mean_service;
    let drain = servers as f64 * (1.0 - load) * service;
    if (drain - service).abs() < 1e-9 * service {
        return (1.0 + waits * service * time) * (-service * time).exp();
    }
    // Wait (zero, or exponential with rate `drain`) plus service (exponential), both independent.
    let both =
        (drain * (-service * time).exp() - service * (-drain * time).exp()) / (drain - service);
    (1.0 - waits) * (-service * time).exp() + waits * both
}

/// The sojourn time in M/M/c at a quantile between 0 and 1, by bisection.
#[must_use]
pub fn mm_sojourn_quantile(servers: usize, load: f64, mean_service: f64, quantile: f64) -> f64 {
    let (mut low, mut high) = (0.0, mean_service);
    while mm_sojourn_tail(servers, load, mean_service, high) > 1.0 - quantile {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if mm_sojourn_tail(servers, load, mean_service, middle) > 1.0 - quantile {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The mean sojourn time, in M/G/1 under processor sharing, of a request with this service time.
/// The distribution of the other service times matters through the load alone.
#[must_use]
pub fn sharing_sojourn(load: f64, service: f64) -> f64 {
    service / (1.0 - load)
}

/// The mean sojourn time in M/M/1 beside bursts that come in a Poisson stream, a mean of `every`
/// apart, last an exponential time of mean `burst`, and go first: preemptive-resume priority
/// (Kleinrock, volume 2, section 3.6).
#[must_use]
pub fn mm1_beside_bursts(load: f64, mean_service: f64, every: f64, burst: f64) -> f64 {
    let left = 1.0 - burst / every;
    // Half the second moment of an exponential time is the square of its mean.
    let residual = burst * burst / every + load * mean_service;
    mean_service / left + residual / (left * (left - load))
}

/// The share of servers with at least `length` requests, `load^((choices^length - 1) / (choices -
/// 1))`, with many servers, exponential service times and first come, first served. Each request
/// joins the shortest of `choices` queues drawn at random.
#[must_use]
pub fn choices_tail(load: f64, choices: u32, length: u32) -> f64 {
    // 1 + d + d^2 + ...: the exponent as a sum, so that one choice needs no case of its own.
    let exponent: f64 = (0..length).map(|i| f64::from(choices).powi(i as i32)).sum();
    load.powf(exponent)
}

/// The mean sojourn time in that system.
#[must_use]
pub fn choices_mean_sojourn(load: f64, choices: u32, mean_service: f64) -> f64 {
    // Little's law over the mean queue length, the sum of the tails.
    let lengths = (1..).map(|length| choices_tail(load, choices, length));
    let queue: f64 = lengths.take_while(|share| *share > 1e-15).sum();
    queue * mean_service / load
}

/// The probability that a sojourn in that system exceeds `time`: a request that becomes the k-th of
/// its queue takes k exponential services.
#[must_use]
pub fn choices_sojourn_tail(load: f64, choices: u32, mean_service: f64, time: f64) -> f64 {
    let scaled = time / mean_service;
    // It finds a shortest queue of at least k with the probability that all of its choices are that
    // long.
    let finds = |length| choices_tail(load, choices, length).powi(choices as i32);
    let (mut tail, mut term, mut erlang, mut length) = (0.0, (-scaled).exp(), 0.0, 0);
    while finds(length) > 1e-12 {
        // The tail of Erlang(k) is the sum of the first k Poisson probabilities.
        erlang += term;
        length += 1;
        term *= scaled / f64::from(length);
        tail += (finds(length - 1) - finds(length)) * erlang;
    }
    tail
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * (1.0 + b.abs())
    }

    #[test]
    fn one_server_is_the_textbook_case() {
        assert!(near(erlang_c(1, 0.7), 0.7));
        assert!(near(mm_mean_wait(1, 0.8, 1.0), 4.0));
        // The sojourn time of M/M/1 is exponential with rate 1 - load.
        assert!(near(
            mm_sojourn_quantile(1, 0.5, 1.0, 0.99),
            100_f64.ln() / 0.5
        ));
    }

    #[test]
    fn erlang_c_by_hand_for_two_servers() {
        // C(2, a) = a^2 / 2 * 2 / (2 - a) / (1 + a + a^2 / (2 - a)), at a = 1: 1/3.
        assert!(near(erlang_c(2, 0.5), 1.0 / 3.0));
    }

    #[test]
    fn one_choice_is_no_choice() {
        assert!(near(choices_tail(0.9, 1, 3), 0.9_f64.powi(3)));
        assert!(near(choices_tail(0.9, 2, 3), 0.9_f64.powi(7)));
        assert!((choices_mean_sojourn(0.9, 1, 1.0) - 10.0).abs() < 1e-6);
        let tail = choices_sojourn_tail(0.5, 1, 1.0, 3.0);
        assert!(
            (tail - mm_sojourn_tail(1, 0.5, 1.0, 3.0)).abs() < 1e-9,
            "{tail}"
        );
    }
}
