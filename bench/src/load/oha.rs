use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{LoadPace, PacedResult, last_json};
use crate::rounds::LoadRequest;

/// Runs the same load with `oha`, an independent generator. Its latencies also count from the time
/// when a request was due. Requests in flight at the end are neither failures nor part of the
/// percentiles.
pub(crate) fn oha(
    program: &Path,
    address: SocketAddr,
    LoadRequest { path, token, body }: &LoadRequest<'_>,
    LoadPace {
        per_second,
        seconds,
    }: LoadPace,
) -> io::Result<PacedResult> {
    let output = Command::new(program)
        .args([
            "--no-tui",
            "--output-format",
            "json",
            "--latency-correction",
            "-c",
            "64",
        ])
        .args(["-q", &per_second.to_string(), "-z", &format!("{seconds}s")])
        .args(["-H", &format!("Authorization: Bearer {token}")])
        .arg(format!("http://{address}{path}"))
        .output()
        .map_err(|error| io::Error::other(format!("{}: {error}", program.display())))?;
    let report = match serde_json::from_slice(&output.stdout) {
        Ok(report) => report,
        Err(_) => last_json(&output)?,
    };
    Ok(read(
        &report,
        u64::from(per_second) * u64::from(seconds),
        body,
    ))
}

/// Parses oha's report. If the bodies do not have the expected size, every request has failed; a
/// run without responses is a failure.
fn read(report: &Value, asked: u64, body: &str) -> PacedResult {
    let counts = |name: &str| -> Vec<(String, u64)> {
        let map = report[name].as_object();
        map.into_iter()
            .flatten()
            .map(|(key, count)| (key.clone(), count.as_u64().unwrap_or(0)))
            .collect()
    };
    let sum = |counts: Vec<(String, u64)>| counts.into_iter().map(|(_, count)| count).sum::<u64>();
    let (right, wrong): (Vec<_>, Vec<_>) = counts("statusCodeDistribution")
        .into_iter()
        .partition(|(status, _)| status == "200");
    let broken = counts("errorDistribution")
        .into_iter()
        .filter(|(reason, _)| !reason.contains("deadline"))
        .collect();
    let mut percentiles: Vec<(f64, f64)> = report["latencyPercentiles"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, seconds)| {
            let percentile = name.trim_start_matches('p').parse().ok()?;
            Some((percentile, seconds.as_f64()? * 1e3))
        })
        .collect();
    percentiles.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (requests, mut failed) = (sum(right), sum(wrong) + sum(broken));
    let body_bytes = report["summary"]["totalData"].as_u64().unwrap_or(0);
    if requests == 0 || (failed == 0 && body_bytes != requests * body.len() as u64) {
        failed = requests.max(1);
    }
    PacedResult {
        asked,
        requests,
        failed,
        percentiles,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Parses a report of oha 1.16 about a load with responses of two bytes.
    fn report(statuses: &Value, errors: &Value, bytes: u64) -> PacedResult {
        let report = json!({
            "summary": {"totalData": bytes},
            "latencyPercentiles": {"p99.9": 0.016, "p50": 0.000_5, "p99.99": null},
            "statusCodeDistribution": statuses,
            "errorDistribution": errors,
        });
        read(&report, 12, "ok")
    }

    #[test]
    fn requests_in_flight_at_the_end_have_not_failed() {
        let seen = report(
            &json!({"200": 10}),
            &json!({"aborted due to deadline": 2}),
            20,
        );
        assert_eq!((seen.asked, seen.requests, seen.failed), (12, 10, 0));
        assert_eq!(
            seen.percentiles,
            [(50.0, 0.5), (99.9, 16.0)],
            "milliseconds in ascending order"
        );
    }

    #[test]
    fn wrong_or_missing_responses_have_failed() {
        let failed = |statuses, errors, bytes| report(&statuses, &errors, bytes).failed;
        assert_eq!(
            failed(
                json!({"200": 9, "503": 2}),
                json!({"connection refused": 1}),
                30
            ),
            3
        );
        assert_eq!(
            failed(json!({"200": 10}), json!({}), 30),
            10,
            "the bodies are wrong"
        );
        assert_eq!(failed(json!({}), json!({}), 0), 1, "no response");
    }
}
