//! What is asked of the servers, and at which loads.

use super::contender::Contender;

/// The scenarios' names, for the command line.
pub const NAMES: [&str; 5] = [
    "get-set",
    "get-scan",
    "get-long-scan",
    "rocksdb-8a",
    "rocksdb-8bc",
];

/// A data set's worth of questions.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// In words.
    pub title: &'static str,
    /// Classes, as `shinjuku-load` reads them; GET is the first.
    pub requests: Vec<&'static str>,
    /// The contenders. The first one's capacity for these requests sets the loads.
    pub contenders: Vec<Contender>,
    /// Saturations besides.
    pub saturations: Vec<Saturation>,
    /// Loads as shares of the capacity.
    loads: Vec<f64>,
    /// Those of them that `--quick` measures.
    quick_loads: Vec<f64>,
}

/// All connections kept full.
#[derive(Debug, Clone)]
pub struct Saturation {
    /// Its name.
    pub name: &'static str,
    /// Classes.
    pub requests: Vec<&'static str>,
    /// Requests under way on each connection.
    pub depth: usize,
}

/// Connections of every load, as redis-benchmark has.
pub const CONNECTIONS: usize = 50;

/// The load at which targets are judged, as a share of the capacity.
pub const JUDGED: f64 = 0.5;

impl Scenario {
    /// All of them.
    pub fn all() -> Vec<Self> {
        const GET: &str = "GET key:{uniform}";
        let get_only = |name, depth| Saturation {
            name,
            requests: vec![GET],
            depth,
        };
        let memory = vec![
            Contender::REDIS,
            Contender::MQ,
            Contender::SQ,
            Contender::FCFS,
            Contender::THREADS,
            Contender::SYMMETRIC,
        ];
        let rocksdb = vec![
            Contender::ROCKSDB_NONE,
            Contender::ROCKSDB_SQ,
            Contender::ROCKSDB_MQ,
            Contender::ROCKSDB_SQ_SIGNAL,
            Contender::ROCKSDB_MQ_SIGNAL,
        ];
        vec![
            Self {
                name: NAMES[0],
                title: "(a) 90 % GET, 10 % SET, 100,000 keys in memory",
                requests: vec![
                    "get:90:GET key:{uniform}",
                    "set:10:SET key:{uniform} {value:64}",
                ],
                contenders: memory.clone(),
                saturations: vec![get_only("GET unpipelined", 1), get_only("GET -P 16", 16)],
                loads: vec![0.2, 0.35, 0.5, 0.65, 0.8, 0.9],
                quick_loads: vec![0.5],
            },
            Self {
                name: NAMES[1],
                title: "(b) GET with 0.5 % SCAN 0 COUNT 5000, 100,000 keys in memory",
                requests: vec!["get:99.5:GET key:{uniform}", "scan:0.5:SCAN 0 COUNT 5000"],
                contenders: memory.clone(),
                saturations: vec![],
                loads: vec![0.2, 0.35, 0.5, 0.65, 0.8, 0.9],
                quick_loads: vec![0.3, 0.5, 0.7],
            },
            Self {
                name: NAMES[2],
                title: "(b) with tenfold scans: GET with 0.05 % SCAN 0 COUNT 50000",
                requests: vec![
                    "get:99.95:GET key:{uniform}",
                    "scan:0.05:SCAN 0 COUNT 50000",
                ],
                contenders: memory,
                saturations: vec![],
                loads: vec![0.3, 0.5, 0.7],
                quick_loads: vec![0.5],
            },
            Self {
                name: NAMES[3],
                title: "(c) RocksDB: 99.5 % GET, 0.5 % SCAN of 1000 keys (figure 8a)",
                requests: vec!["get:99.5:GET key:{uniform}", "scan:0.5:SCAN 0 COUNT 1000"],
                contenders: rocksdb.clone(),
                saturations: vec![],
                loads: vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
                quick_loads: vec![0.1, 0.25, 0.5, 0.7, 0.85],
            },
            Self {
                name: NAMES[4],
                title: "(c) RocksDB: half GET, half SCAN of 5000 keys (figures 8b and 8c)",
                requests: vec!["get:50:GET key:{uniform}", "scan:50:SCAN 0 COUNT 5000"],
                contenders: rocksdb,
                saturations: vec![],
                loads: vec![0.2, 0.35, 0.5, 0.65, 0.8, 0.9],
                quick_loads: vec![0.3, 0.5, 0.7],
            },
        ]
    }

    /// The loads to measure.
    pub fn loads(&self, quick: bool) -> Vec<f64> {
        if quick {
            self.quick_loads.clone()
        } else {
            self.loads.clone()
        }
    }

    /// Whether a contender needs RocksDB.
    pub fn needs_rocksdb(&self) -> bool {
        self.contenders.iter().any(Contender::needs_rocksdb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_its_name_and_the_load_that_is_judged() {
        let all = Scenario::all();
        let names: Vec<_> = all.iter().map(|one| one.name).collect();
        assert_eq!(names, NAMES);
        for scenario in all {
            for quick in [false, true] {
                assert!(scenario.loads(quick).contains(&JUDGED), "{}", scenario.name);
            }
            for request in scenario.requests {
                request.parse::<shinjuku_loadgen::Command>().unwrap();
            }
        }
    }
}
