//! Lua scripts for atomic operations, each over one key.

use std::sync::LazyLock;

use redis::Script;

/// A script, compiled at its first use.
type LazyScript = LazyLock<Script>;

/// Increments a counter and returns its value. The first increment sets the time to live, in
/// milliseconds, in the same script, so that a crash leaves no counter without expiry.
pub(in crate::cache) static INCREMENT: LazyScript = LazyLock::new(|| {
    Script::new(
        "local n = redis.call('INCR', KEYS[1]) \
                         if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end return n",
    )
});

/// Reserves the next slot of a pace, as `next_slot` does, and returns the microseconds until it
/// begins. Arguments: the interval in microseconds, and the maximum number of slots in advance.
pub(in crate::cache) static RESERVE_SLOT: LazyScript = LazyLock::new(|| {
    Script::new(
        "local time, interval = redis.call('TIME'), tonumber(ARGV[1]) \
                            local now = time[1] * 1000000 + time[2] \
                            local slot = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) \
                            if slot - now > interval * tonumber(ARGV[2]) then slot = now end \
                            local following = string.format('%.0f', slot + interval) \
                            local ttl = math.ceil((slot + interval - now) / 1000) + 1000 \
                            redis.call('SET', KEYS[1], following, 'PX', string.format('%.0f', ttl)) \
                            return slot - now",
    )
});

/// Deletes the key if it has the value. Returns 1 if it was deleted, otherwise 0.
pub(in crate::cache) static DELETE_IF_EQUAL: LazyScript = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] \
                               then return redis.call('DEL', KEYS[1]) end return 0",
    )
});

/// Sets the time to live, in milliseconds, if the key has the value. Returns 1 if it was set,
/// otherwise 0.
pub(in crate::cache) static EXTEND_IF_EQUAL: LazyScript = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] \
                               then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0",
    )
});

/// Lua function that returns the server's epoch, `run_id:master_replid`, or an error reply (a
/// table) if the server is not a master. An epoch is one process and one history of its data set as
/// master: Redis generates `run_id` at each start, and `master_replid` at each start and promotion.
const EPOCH_FUNCTION: &str = "local function epoch() \
    local replication = redis.call('INFO', 'replication') \
    if not string.find(replication, 'role:master', 1, true) then return redis.error_reply('READONLY not a master') end \
    return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. ':' .. \
        string.match(replication, 'master_replid:(%x+)') end ";

/// Returns the epoch, or the error reply.
pub(in crate::cache) static EPOCH: LazyScript =
    LazyLock::new(|| Script::new(&format!("{EPOCH_FUNCTION}return epoch()")));

/// Deletes the key. Returns its value, or nil, and the epoch in which it was deleted. Fails on a
/// replica.
pub(in crate::cache) static TAKE: LazyScript = LazyLock::new(|| {
    Script::new(&format!(
        "{EPOCH_FUNCTION}local now = epoch() if type(now) == 'table' then return now end \
                    return {{redis.call('GETDEL', KEYS[1]), now}}"
    ))
});

/// Stores a value if the key does not exist and the server is in the epoch. Arguments: the value,
/// its time to live in milliseconds, the epoch. Returns 1 if it was stored, otherwise 0. Fails on a
/// replica.
pub(in crate::cache) static SET_IF_ABSENT: LazyScript = LazyLock::new(|| {
    Script::new(&format!(
        "{EPOCH_FUNCTION}local now = epoch() if type(now) == 'table' then return now end \
    if now ~= ARGV[3] then return 0 end \
    return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0"
    ))
});

/// Start of the scripts that change a counter of attempts: reads the counter and defines functions.
/// See [`super::super::attempts`] for the fields and for the same rules in memory.
///
/// Arguments: the token of the attempt; `free`, `delayed_from`, and in milliseconds `window`,
/// `delays.initial`, `delays.max` of the policy.
const ATTEMPTS: &str = "local time = redis.call('TIME') \
    local now = time[1] * 1000 + math.floor(time[2] / 1000) \
    local free, threshold, window = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]) \
    local initial, max = tonumber(ARGV[5]), tonumber(ARGV[6]) \
    local era, failures, pending, ends, delayed, holder = \
        string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+) (%d+) (%d+) (%d+) (%S+)$') \
    failures, pending = tonumber(failures or 0), tonumber(pending or 0) \
    ends = math.min(tonumber(ends or 0), now + window) \
    delayed = tonumber(delayed or 0) \
    if delayed > now + max then delayed = 0 end \
    local function start_window() \
        if now >= ends then \
            era, failures, pending, ends, holder = ARGV[1], 0, 0, now + window, '-' end end \
    local function delay_after(count) \
        return math.min(max, initial * 2 ^ math.max(0, math.min(20, count - free - 1))) end \
    local function store() \
        redis.call('SET', KEYS[1], string.format('%s %.0f %.0f %.0f %.0f %s', \
            era, failures, pending, ends, delayed, holder), \
            'PX', string.format('%.0f', math.max(ends, delayed) - now)) end ";

/// Admits and counts an attempt. Returns the count and the token of the first attempt of the
/// window, or zero and an empty text during a delay.
pub(in crate::cache) static RESERVE_ATTEMPT: LazyScript = LazyLock::new(|| {
    Script::new(&format!(
        "{ATTEMPTS}if now < delayed then return {{0, ''}} end \
    start_window() pending = pending + 1 \
    local count = failures + pending \
    if count >= threshold then delayed = now + delay_after(count) holder = ARGV[1] end \
    store() return {{count, era}}"
    ))
});

/// Records the outcome of an attempt. Further arguments: the token of the first attempt of its
/// window; `failed` or `released`.
pub(in crate::cache) static SETTLE_ATTEMPT: LazyScript = LazyLock::new(|| {
    Script::new(&format!(
        "{ATTEMPTS}if ARGV[8] == 'failed' then \
        start_window() \
        if era == ARGV[7] then pending = math.max(0, pending - 1) end \
        failures = failures + 1 \
        if failures >= threshold then \
            delayed = math.max(delayed, now + delay_after(failures)) holder = '-' end \
        store() return 1 end \
    if era ~= ARGV[7] or now >= ends then return 0 end \
    pending = math.max(0, pending - 1) \
    if holder == ARGV[1] or (holder ~= '-' and failures + pending < threshold) then \
        delayed = 0 holder = '-' end \
    if failures + pending == 0 then ends = delayed end \
    if math.max(ends, delayed) <= now then redis.call('DEL', KEYS[1]) else store() end \
    return 1"
    ))
});
