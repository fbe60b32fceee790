//! The programs that the bench starts: it starts itself with one of these.

use std::io::{stdin, stdout};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Serialize;
use shinjuku::net::wire::ShinjukuRequest;
use shinjuku_elevate::supervise;
use shinjuku_examples::work::spin;

use super::Moment;
use super::turns::Turns;

/// Programs.
#[derive(Debug, Subcommand)]
#[command(hide = true)]
pub enum Part {
    /// The supervisor.
    #[command(hide = true)]
    Supervise,
    /// A busy loop that notes its turns.
    #[command(hide = true)]
    Busy {
        #[arg(long)]
        at: u64,
        #[arg(long)]
        seconds: f64,
        /// Shorter absences are no turn's end.
        #[arg(long)]
        least_us: f64,
    },
    /// Looks for primes, and counts how often.
    #[command(hide = true)]
    Compute {
        #[arg(long)]
        at: u64,
        #[arg(long)]
        seconds: f64,
    },
    /// A server of one thread that polls.
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        steps_per_nano: f64,
        /// The server ends after this, whatever happens.
        #[arg(long)]
        seconds: f64,
    },
}

/// Numbers below this are tested for being prime, as one event.
const PRIMES_BELOW: u32 = 1000;

impl Part {
    pub(super) fn run(&self) -> Result<()> {
        match *self {
            Self::Supervise => {
                supervise(stdin(), stdout()).context("the supervisor")?;
                Ok(())
            }
            Self::Busy {
                at,
                seconds,
                least_us,
            } => {
                let least = Duration::from_secs_f64(least_us / 1e6);
                let begin = || Moment::from_nanos(at).wait();
                print(&Turns::note(Duration::from_secs_f64(seconds), least, begin))
            }
            Self::Compute { at, seconds } => {
                Moment::from_nanos(at).wait();
                print(&compute(Duration::from_secs_f64(seconds)))
            }
            Self::Serve {
                steps_per_nano,
                seconds,
            } => serve(steps_per_nano, Duration::from_secs_f64(seconds)),
        }
    }
}

fn print(result: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(result)?);
    Ok(())
}

/// Events in that time.
fn compute(length: Duration) -> u64 {
    let begun = Instant::now();
    let mut events = 0;
    while begun.elapsed() < length {
        let is_prime = |&number: &u32| {
            (2..number)
                .take_while(|d| d * d <= number)
                .all(|d| !number.is_multiple_of(d))
        };
        std::hint::black_box((2..PRIMES_BELOW).filter(is_prime).count());
        events += 1;
    }
    events
}

/// Prints the address, and answers until the time is over.
fn serve(steps_per_nano: f64, length: Duration) -> Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0").context("cannot bind a socket")?;
    socket.set_nonblocking(true)?;
    println!("{}", socket.local_addr()?);
    let begun = Instant::now();
    let mut buffer = [0; 64];
    while begun.elapsed() < length {
        let Ok((length, peer)) = socket.recv_from(&mut buffer) else {
            std::hint::spin_loop();
            continue;
        };
        let Ok(request) = ShinjukuRequest::parse(&buffer[..length]) else {
            continue;
        };
        spin((request.run_nanos as f64 * steps_per_nano) as u64);
        // A client that has gone gets none.
        let _ = socket.send_to(&buffer[..length], peer);
    }
    Ok(())
}
