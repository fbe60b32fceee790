//! Latencies as a HdrHistogram log for that project's tools: one line a point and class, tagged
//! with both. Each format of the report has a file.

use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2Serializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use crate::measure::Measurement;
use crate::plan::Load;

/// The log, with values in ns. Each interval begins where the one before ends, from zero on.
///
/// # Errors
/// The errors of the library; it is not known to refuse any histogram.
pub fn hdr_log(classes: &[String], measured: &[Measurement]) -> anyhow::Result<Vec<u8>> {
    let mut log = Vec::new();
    let mut serializer = V2Serializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.with_start_time(SystemTime::now());
    builder.with_max_value_divisor(1e6);
    let mut writer = builder
        .begin_log_with(&mut log, &mut serializer)
        .map_err(|error| anyhow::anyhow!("beginning the log: {error}"))?;
    let mut start = Duration::ZERO;
    for one in measured {
        let length = Duration::from_secs_f64(one.point.seconds);
        let load = match one.point.load {
            Load::Rate(rate) => format!("{rate:.0}"),
            Load::Saturate(depth) => format!("x{depth}"),
        };
        for (at, histogram) in one.histograms.iter().enumerate() {
            let probe = if at >= classes.len() { "-probe" } else { "" };
            // A tag ends at a comma, and its line at a blank.
            let name = classes[at % classes.len()].replace([',', ' ', '\n', '\r'], "_");
            let tag = format!("{name}{probe}@{load}/{}", one.point.seed);
            let tag = Tag::new(&tag);
            writer
                .write_histogram(histogram, start, length, tag)
                .map_err(|error| anyhow::anyhow!("writing a histogram: {error:?}"))?;
        }
        start += length;
    }
    Ok(log)
}
