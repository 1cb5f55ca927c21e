use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{Paced, last_json};
use crate::rounds::Question;

/// The same load by `oha`, which none of us wrote. Its latencies count from when it was due too;
/// what was under way when the time was over has not failed, and is in no percentile.
pub(crate) fn oha(
    program: &Path,
    address: SocketAddr,
    Question { path, token, body }: &Question<'_>,
    (per_second, seconds): (u32, u32),
) -> io::Result<Paced> {
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
    let said = match serde_json::from_slice(&output.stdout) {
        Ok(said) => said,
        Err(_) => last_json(&output)?,
    };
    Ok(read(
        &said,
        u64::from(per_second) * u64::from(seconds),
        body,
    ))
}

/// What it tells. If the bodies were not as long as the right one every request has failed, and a
/// run without any answer is a failure.
fn read(said: &Value, asked: u64, body: &str) -> Paced {
    let counts = |name: &str| -> Vec<(String, u64)> {
        let map = said[name].as_object();
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
    let mut percentiles: Vec<(f64, f64)> = said["latencyPercentiles"]
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
    let body_bytes = said["summary"]["totalData"].as_u64().unwrap_or(0);
    if requests == 0 || (failed == 0 && body_bytes != requests * body.len() as u64) {
        failed = requests.max(1);
    }
    Paced {
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

    /// What oha 1.16 tells of a load with answers of two bytes, as far as it is read.
    fn told(statuses: &Value, errors: &Value, bytes: u64) -> Paced {
        let said = json!({
            "summary": {"totalData": bytes},
            "latencyPercentiles": {"p99.9": 0.016, "p50": 0.000_5, "p99.99": null},
            "statusCodeDistribution": statuses,
            "errorDistribution": errors,
        });
        read(&said, 12, "ok")
    }

    #[test]
    fn what_was_under_way_in_the_end_has_not_failed() {
        let seen = told(
            &json!({"200": 10}),
            &json!({"aborted due to deadline": 2}),
            20,
        );
        assert_eq!((seen.asked, seen.requests, seen.failed), (12, 10, 0));
        assert_eq!(
            seen.percentiles,
            [(50.0, 0.5), (99.9, 16.0)],
            "milliseconds, the lowest first"
        );
    }

    #[test]
    fn what_is_wrong_or_has_no_answer_has_failed() {
        let failed = |statuses, errors, bytes| told(&statuses, &errors, bytes).failed;
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
            "the bodies are not the right one"
        );
        assert_eq!(failed(json!({}), json!({}), 0), 1, "nothing was answered");
    }
}
