-- Prints the results that the driver reads. wrk counts everything, so that no response costs a call into Lua.
done = function(summary, latency, requests)
  local errors = summary.errors
  -- A script that ends early reports its own duration.
  local duration = spent_us and spent_us() or summary.duration
  io.write(string.format(
    '\n{"requests":%d,"bytes":%d,"durationUs":%d,"failed":%d,"p50Us":%d,"p99Us":%d,"p999Us":%d}\n',
    summary.requests, summary.bytes, duration,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
