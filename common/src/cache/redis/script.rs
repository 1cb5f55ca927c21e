//! What Redis does in one step: Lua scripts, each over the keys of one slot unless it says
//! otherwise.

use redis::Script;

/// The first of a window sets its end. One script, so that no crash leaves a count without an end.
const INCREMENT: &str = "local n = redis.call('INCR', KEYS[1]) \
                         if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end return n";

/// A count that is forgotten would come back without an end, and none is below zero.
const DECREMENT: &str = "local n = redis.call('GET', KEYS[1]) \
                         if not n or n == '0' then return 0 end \
                         if n == '1' then redis.call('DEL', KEYS[1]) return 0 end \
                         return redis.call('DECR', KEYS[1])";

const DELETE_IF_EQUAL: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] \
                               then return redis.call('DEL', KEYS[1]) end return 0";

const EXTEND_IF_EQUAL: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] \
                               then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// The epoch of the server: one process, and one history of its data set that it has written as a
/// master. Redis draws `run_id` at each start, and `master_replid` at each start and promotion.
const EPOCH: &str = "local function epoch() \
    local replication = redis.call('INFO', 'replication') \
    if not string.find(replication, 'role:master', 1, true) then return redis.error_reply('READONLY no master') end \
    return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. ':' .. \
        string.match(replication, 'master_replid:(%x+)') end ";

const TELL_EPOCH: &str = "return epoch()";

const TAKE: &str = "local now = epoch() if type(now) == 'table' then return now end \
                    return {redis.call('GETDEL', KEYS[1]), now}";

const SET_IF_ABSENT: &str = "if epoch() ~= ARGV[3] then return 0 end \
    return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0";

/// Keys: the one that is compared; the lock; what is kept beside it. Over a cluster the first
/// alone. Arguments: the epoch; the new value and its time to live; `present` or `absent` and what
/// is expected; the lock's value; then a value and a time to live for each of the others. A value
/// that is there already was kept by the same call, whose answer was lost.
const COMMIT: &str = "local found = redis.call('GET', KEYS[1]) \
    if found ~= ARGV[2] and (epoch() ~= ARGV[1] or found ~= (ARGV[4] == 'present' and ARGV[5])) then return 0 end \
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) \
    for i = 3, #KEYS do redis.call('SET', KEYS[i], ARGV[2 * i + 1], 'PX', ARGV[2 * i + 2]) end \
    if KEYS[2] and redis.call('GET', KEYS[2]) == ARGV[6] then redis.call('DEL', KEYS[2]) end \
    return 1";

pub(super) struct Scripts {
    pub(super) increment: Script,
    pub(super) decrement: Script,
    pub(super) delete_if_equal: Script,
    pub(super) extend_if_equal: Script,
    pub(super) epoch: Script,
    /// The same as a text, for pipelines: they cannot load what the server has not seen.
    pub(super) epoch_text: String,
    pub(super) take: Script,
    pub(super) set_if_absent: Script,
    pub(super) commit: Script,
}

// === impl Scripts ===

impl Scripts {
    pub(super) fn new() -> Self {
        let in_epoch = |script: &str| Script::new(&format!("{EPOCH}{script}"));
        Self {
            increment: Script::new(INCREMENT),
            decrement: Script::new(DECREMENT),
            delete_if_equal: Script::new(DELETE_IF_EQUAL),
            extend_if_equal: Script::new(EXTEND_IF_EQUAL),
            epoch: in_epoch(TELL_EPOCH),
            epoch_text: format!("{EPOCH}{TELL_EPOCH}"),
            take: in_epoch(TAKE),
            set_if_absent: in_epoch(SET_IF_ABSENT),
            commit: in_epoch(COMMIT),
        }
    }
}
