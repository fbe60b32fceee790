//! The simulator against queueing theory. Each figure is an estimate over replications; the theory
//! must lie within 1.6 half-widths of its 95 % interval (three standard deviations), and the
//! interval must be narrow enough to mean something.
//!
//! Mean service times are 100 us, so that whole nanoseconds round nothing that matters.

use shinjuku_policy::{cfcfs, dfcfs, single_queue};
use shinjuku_sim::rack::{BalancerSpec, LoadInfo, RackScenario};
use shinjuku_sim::{
    Estimate, Measure, Replicated, Sample, Scenario, Scheduler, SimError, Until, replicate, theory,
};
use shinjuku_workload::{Class, Mix, ServiceTime, lindley};

const MEAN_US: f64 = 100.0;
const SEED: u64 = 20_190_226;

fn only(service: ServiceTime) -> Mix {
    Mix::new("only", vec![Class::new("request", 1.0, service)]).unwrap()
}

fn exponential() -> Mix {
    only(ServiceTime::exponential(MEAN_US).unwrap())
}

fn replications(
    run: impl Fn(u64) -> Result<Sample, SimError> + Sync,
    replications: u32,
) -> Replicated {
    let until = Until::Replications(replications);
    replicate(run, SEED, until, |_, _| {}).unwrap()
}

fn simulate(scenario: &Scenario, count: u32) -> Replicated {
    replications(|seed| scenario.run(seed).map(Sample::from), count)
}

#[track_caller]
fn agree(what: &str, estimate: Estimate, truth: f64, narrow: f64) {
    assert!(
        estimate.relative() < narrow,
        "{what}: {estimate:.4} is too wide to tell"
    );
    assert!(
        estimate.agrees_with(truth, 1.6),
        "{what}: {estimate:.4}, theory {truth:.4}"
    );
}

#[test]
fn mm1_waits_as_theory_says() {
    for load in [0.3, 0.7, 0.85] {
        let scenario = Scenario::new(exponential(), load, Scheduler::of(cfcfs::REGISTERED), 1);
        let result = simulate(&scenario, 12);
        let truth = theory::mm_mean_wait(1, load, MEAN_US);
        agree(
            "mean wait",
            result.estimate(Measure::MeanWaitUs, None),
            truth,
            0.04,
        );
        let truth = theory::mm_sojourn_quantile(1, load, MEAN_US, 0.99);
        agree(
            "p99 sojourn",
            result.estimate(Measure::P99Us, None),
            truth,
            0.04,
        );
        let truth = theory::mm_sojourn_quantile(1, load, MEAN_US, 0.5);
        agree(
            "median sojourn",
            result.estimate(Measure::P50Us, None),
            truth,
            0.04,
        );
    }
}

#[test]
fn mmc_waits_as_erlang_c_says() {
    for (servers, load) in [(2, 0.7), (16, 0.9)] {
        let scenario = Scenario::new(
            exponential(),
            load,
            Scheduler::of(cfcfs::REGISTERED),
            servers,
        );
        let result = simulate(&scenario, 12);
        let truth = theory::mm_mean_wait(servers, load, MEAN_US);
        agree(
            "mean wait",
            result.estimate(Measure::MeanWaitUs, None),
            truth,
            0.06,
        );
        let truth = theory::mm_sojourn_quantile(servers, load, MEAN_US, 0.99);
        agree(
            "p99 sojourn",
            result.estimate(Measure::P99Us, None),
            truth,
            0.02,
        );
    }
}

#[test]
fn mm1_and_mmc_waiting_times_have_their_quantiles() {
    for (servers, load) in [(1, 0.8), (4, 0.8)] {
        let scenario = Scenario::new(
            exponential(),
            load,
            Scheduler::of(cfcfs::REGISTERED),
            servers,
        );
        let quantiles: Vec<f64> = (0..10)
            .map(|seed| {
                let run = scenario.run(SEED + seed).unwrap();
                run.tally.wait_quantile_ns(0.95) as f64 / 1e3
            })
            .collect();
        let truth = theory::mm_wait_quantile(servers, load, MEAN_US, 0.95);
        agree("p95 wait", Estimate::of(&quantiles), truth, 0.05);
    }
}

#[test]
fn md1_and_mg1_wait_as_pollaczek_and_khinchine_say() {
    let cases = [
        ("M/D/1", ServiceTime::fixed(MEAN_US).unwrap(), 0.8),
        (
            "lognormal",
            ServiceTime::lognormal(MEAN_US, 2.0 * MEAN_US).unwrap(),
            0.6,
        ),
        (
            "bimodal",
            ServiceTime::bimodal(50.0, 1_050.0, 0.05).unwrap(),
            0.7,
        ),
        ("Pareto 3", ServiceTime::pareto(MEAN_US, 3.0).unwrap(), 0.5),
    ];
    for (name, service, load) in cases {
        let truth = lindley::mean_wait_ns(load, service.mean_ns(), service.second_moment()) / 1e3;
        let scenario = Scenario::new(only(service), load, Scheduler::of(cfcfs::REGISTERED), 1);
        let result = simulate(&scenario, 12);
        agree(
            name,
            result.estimate(Measure::MeanWaitUs, None),
            truth,
            0.05,
        );
    }
}

/// Under processor sharing a request's mean sojourn time is x / (1 - rho), whatever the others are
/// like: here sizes double from 10 us to 10 ms while their shares fall with the power 1.5 (an
/// infinite variance, were there no end).
#[test]
fn mg1_ps_gives_every_size_its_share() {
    let size = |power: i32| 10.0 * 2_f64.powi(power);
    let class = |power: i32| {
        let service = ServiceTime::fixed(size(power)).unwrap();
        Class::new(
            format!("{}us", size(power)),
            size(power).powf(-1.5),
            service,
        )
    };
    let mix = Mix::new("heavy", (0..=10).map(class).collect()).unwrap();
    let load = 0.7;
    let scenario = Scenario::new(mix, load, Scheduler::sharing(), 1).with_requests(150_000);
    let result = simulate(&scenario, 16);
    for power in 0..=10 {
        let estimate = result.estimate(Measure::MeanUs, Some(power as u16));
        let truth = theory::sharing_sojourn(load, size(power));
        agree(&format!("{} us", size(power)), estimate, truth, 0.12);
    }
}

#[test]
fn mg1_ps_slowdown_of_a_pareto_is_the_same_for_all() {
    let load = 0.6;
    let service = ServiceTime::pareto(MEAN_US, 1.5).unwrap();
    let scenario = Scenario::new(only(service), load, Scheduler::sharing(), 1);
    let result = simulate(&scenario, 16);
    let estimate = result.estimate(Measure::MeanSlowdown, None);
    agree("mean slowdown", estimate, 1.0 / (1.0 - load), 0.08);
}

/// c-PRE-SQ tends to processor sharing as the quantum goes to zero.
#[test]
fn a_small_quantum_is_nearly_processor_sharing() {
    let quantum = shinjuku_policy::Nanos::from_micros(1);
    let load = 0.6;
    let policy = Scheduler::of(single_queue::REGISTERED).with_quantum(quantum);
    let scenario = Scenario::new(exponential(), load, policy, 1).with_requests(20_000);
    let result = simulate(&scenario, 12);
    let estimate = result.estimate(Measure::MeanUs, None);
    agree(
        "mean sojourn",
        estimate,
        theory::sharing_sojourn(load, MEAN_US),
        0.05,
    );
}

/// Every request has a flow of its own: each worker is an M/M/1 with the whole system's load.
#[test]
fn d_fcfs_is_as_many_single_servers() {
    let load = 0.7;
    let scenario = Scenario::new(exponential(), load, Scheduler::of(dfcfs::REGISTERED), 8);
    let result = simulate(&scenario, 12);
    let truth = theory::mm_mean_wait(1, load, MEAN_US);
    agree(
        "M/M/1 wait",
        result.estimate(Measure::MeanWaitUs, None),
        truth,
        0.05,
    );
    let truth = theory::mm_sojourn_quantile(1, load, MEAN_US, 0.99);
    agree(
        "M/M/1 p99",
        result.estimate(Measure::P99Us, None),
        truth,
        0.05,
    );

    let service = ServiceTime::bimodal(50.0, 1_050.0, 0.05).unwrap();
    let truth = lindley::mean_wait_ns(load, service.mean_ns(), service.second_moment()) / 1e3;
    let scenario = Scenario::new(only(service), load, Scheduler::of(dfcfs::REGISTERED), 8);
    let result = simulate(&scenario, 12);
    agree(
        "M/G/1 wait",
        result.estimate(Measure::MeanWaitUs, None),
        truth,
        0.05,
    );
}

/// Mitzenmacher's limit for many servers. With 400 of them the finite system differs by less than a
/// hundredth, which is added to the interval.
#[test]
fn power_of_two_has_its_mean_field_tail() {
    let load = 0.9;
    let scenario = RackScenario {
        balancer: BalancerSpec::PowerOf(2),
        load_info: LoadInfo::Exact,
        shape: shinjuku_sim::Shape {
            capacity: 256,
            ..shinjuku_sim::Shape::ideal(1)
        },
        requests: 150_000,
        ..RackScenario::new(
            exponential(),
            load,
            Scheduler::of(cfcfs::REGISTERED),
            400,
            1,
        )
    };
    let result = replications(|seed| scenario.run(seed).map(Sample::from), 6);
    let mean = result.estimate(Measure::MeanUs, None);
    let truth = theory::choices_mean_sojourn(load, 2, MEAN_US);
    assert!(
        (mean.value - truth).abs() < 1.6 * mean.half_width + 0.01 * truth,
        "{mean} {truth}"
    );
    let p99 = result.estimate(Measure::P99Us, None);
    let tail = theory::choices_sojourn_tail(load, 2, MEAN_US, p99.value);
    assert!(
        (tail - 0.01).abs() < 0.0008,
        "P(T > {p99}) should be 0.01, theory says {tail}"
    );
}

#[test]
fn batch_means_of_one_run_cover_the_truth() {
    let scenario = Scenario::new(exponential(), 0.6, Scheduler::of(cfcfs::REGISTERED), 1)
        .with_requests(500_000);
    let truth = theory::mm_mean_wait(1, 0.6, MEAN_US) + MEAN_US;
    let run = scenario.run(SEED).unwrap();
    let means: Vec<f64> = run
        .tally
        .batch_means()
        .means()
        .iter()
        .map(|ns| ns / 1e3)
        .collect();
    agree("batch means", Estimate::of(&means), truth, 0.05);
}
