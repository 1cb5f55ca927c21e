//! Lua scripts for atomic operations. Each uses the keys of one slot unless stated otherwise.

use redis::Script;

/// The first increment sets the expiry, in one script, so that a crash leaves no counter without
/// expiry.
const INCREMENT: &str = "local n = redis.call('INCR', KEYS[1]) \
                         if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end return n";

/// An expired counter is not recreated, because it would have no expiry, and no counter is below
/// zero.
const DECREMENT: &str = "local n = redis.call('GET', KEYS[1]) \
                         if not n or n == '0' then return 0 end \
                         if n == '1' then redis.call('DEL', KEYS[1]) return 0 end \
                         return redis.call('DECR', KEYS[1])";

const DELETE_IF_EQUAL: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] \
                               then return redis.call('DEL', KEYS[1]) end return 0";

const EXTEND_IF_EQUAL: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] \
                               then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// Function that returns the server's epoch: one process and one history of its data set as master.
/// Redis generates `run_id` at each start, and `master_replid` at each start and promotion.
const EPOCH: &str = "local function epoch() \
    local replication = redis.call('INFO', 'replication') \
    if not string.find(replication, 'role:master', 1, true) then return redis.error_reply('READONLY no master') end \
    return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. ':' .. \
        string.match(replication, 'master_replid:(%x+)') end ";

const RETURN_EPOCH: &str = "return epoch()";

const TAKE: &str = "local now = epoch() if type(now) == 'table' then return now end \
                    return {redis.call('GETDEL', KEYS[1]), now}";

const SET_IF_ABSENT: &str = "if epoch() ~= ARGV[3] then return 0 end \
    return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0";

/// Keys: the compared key; the lock; the dependent keys. Over a cluster only the first. Arguments:
/// the epoch; the new value and its time to live; `present` or `absent` and the expected value; the
/// lock's token; then value and time to live of each dependent key. If the key already has the new
/// value, the same call stored it and its answer was lost.
const COMMIT: &str = "local found = redis.call('GET', KEYS[1]) \
    if found ~= ARGV[2] and (epoch() ~= ARGV[1] or found ~= (ARGV[4] == 'present' and ARGV[5])) then return 0 end \
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) \
    for i = 3, #KEYS do redis.call('SET', KEYS[i], ARGV[2 * i + 1], 'PX', ARGV[2 * i + 2]) end \
    if KEYS[2] and redis.call('GET', KEYS[2]) == ARGV[6] then redis.call('DEL', KEYS[2]) end \
    return 1";

pub(super) struct ScriptSet {
    pub(super) increment: Script,
    pub(super) decrement: Script,
    pub(super) delete_if_equal: Script,
    pub(super) extend_if_equal: Script,
    pub(super) epoch: Script,
    /// Source of `epoch`, for pipelines, which cannot load a missing script.
    pub(super) epoch_text: String,
    pub(super) take: Script,
    pub(super) set_if_absent: Script,
    pub(super) commit: Script,
}

// === impl ScriptSet ===

impl ScriptSet {
    pub(super) fn new() -> Self {
        let in_epoch = |script: &str| Script::new(&format!("{EPOCH}{script}"));
        Self {
            increment: Script::new(INCREMENT),
            decrement: Script::new(DECREMENT),
            delete_if_equal: Script::new(DELETE_IF_EQUAL),
            extend_if_equal: Script::new(EXTEND_IF_EQUAL),
            epoch: in_epoch(RETURN_EPOCH),
            epoch_text: format!("{EPOCH}{RETURN_EPOCH}"),
            take: in_epoch(TAKE),
            set_if_absent: in_epoch(SET_IF_ABSENT),
            commit: in_epoch(COMMIT),
        }
    }
}
