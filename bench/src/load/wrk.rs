use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{LoadResult, last_json};

/// Lua that reports the results; appended to every script.
const REPORT: &str = include_str!("../../lua/report.lua");

/// A closed-loop load of one thread with keep-alive connections.
#[derive(Clone, Debug)]
pub(crate) struct WrkLoad {
    pub(crate) connections: u32,
    pub(crate) seconds: u32,
    /// Lua that creates the requests, without `done`.
    pub(crate) script: String,
}

impl WrkLoad {
    /// Runs the load against `http://address/path`.
    pub(crate) fn run(
        &self,
        folder: &Path,
        address: SocketAddr,
        path: &str,
    ) -> io::Result<LoadResult> {
        let file = folder.join("load.lua");
        fs::write(&file, format!("{}\n{REPORT}", self.script))?;
        let output = Command::new("wrk")
            .args([
                "-t1",
                &format!("-c{}", self.connections),
                &format!("-d{}s", self.seconds),
            ])
            .arg("-s")
            .arg(&file)
            .arg(format!("http://{address}{path}"))
            .output()?;
        let said = last_json(&output)?;
        let number = |name: &str| said[name].as_f64().unwrap_or(f64::NAN);
        Ok(LoadResult {
            requests: said["requests"].as_u64().unwrap_or(0),
            per_second: number("requests") * 1e6 / number("durationUs"),
            failed: said["failed"].as_u64().unwrap_or(0),
            p99_us: number("p99Us"),
            answer_bytes: number("bytes") / number("requests").max(1.0),
        })
    }

    /// Returns the same load with another duration.
    pub(crate) fn lasting(&self, seconds: u32) -> Self {
        Self {
            seconds,
            ..self.clone()
        }
    }
}

/// Returns a script that repeats one request.
pub(crate) fn headers_script(method: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut script = format!("wrk.method = {method:?}\n");
    for (name, value) in headers {
        script.push_str(&format!("wrk.headers[{name:?}] = {value:?}\n"));
    }
    if !body.is_empty() {
        script.push_str(&format!("wrk.body = [==[{body}]==]\n"));
    }
    script
}

/// Returns a script that sends each token of a file in turn. The requests are created before the
/// load begins.
pub(crate) fn tokens_script(file: &Path, path: &str) -> String {
    format!(
        "local made, at = {{}}, 0\n\
         init = function()\n\
         \x20 for token in io.lines({:?}) do\n\
         \x20   made[#made + 1] = wrk.format('GET', {path:?}, {{['Authorization'] = 'Bearer ' .. token}})\n\
         \x20 end\n\
         end\n\
         request = function() at = at % #made + 1; return made[at] end\n",
        file.display().to_string()
    )
}
