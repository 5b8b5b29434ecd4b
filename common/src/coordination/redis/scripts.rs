//! What must be decided and done in one step runs on the server, as Lua. A script is called by its hash; a server that
//! does not know it (any longer: it restarted, or somebody flushed it) gets the text in a second call.

use ::redis::{Cmd, ToRedisArgs, cmd};

/// The server's clock, in milliseconds. TIME answers seconds and microseconds.
macro_rules! with_now {
    ($body:literal) => {
        concat!(
            "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function whole(number) return string.format('%.0f', number) end
",
            $body
        )
    };
}

/// KEYS: lock. ARGV: token, life in milliseconds.
const RENEW: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
";

/// KEYS: lock. ARGV: token.
const RELEASE: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
";

/// KEYS: heartbeat, tombstone, alive, since. ARGV: incarnation, payload, life in milliseconds.
const HEARTBEAT: &str = with_now!(
    "
redis.call('SET', KEYS[4], whole(now), 'NX')
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('SET', KEYS[1], whole(now) .. ':' .. ARGV[2], 'PX', ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', whole(now))
redis.call('ZADD', KEYS[3], whole(now + ARGV[3]), ARGV[1])
return 1
"
);

/// KEYS: heartbeat, tombstone, alive. ARGV: incarnation, life in milliseconds.
const ENTOMB: &str = "
redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return true
";

/// KEYS: alive, since. ARGV: what stands before the incarnation in the key of a heartbeat.
/// Answers now, for how long the server has known, the incarnations, and the value of each.
///
/// A server that came back from an older copy of its data knows only what it heard since it started; INFO says when.
/// A user who may not call it does without.
const LIST: &str = with_now!(
    "
local since = tonumber(redis.call('GET', KEYS[2]) or nil)
if not since or since > now then
  since = now
  redis.call('SET', KEYS[2], whole(now))
end
local known = now - since
local info = redis.pcall('INFO', 'server')
local uptime = type(info) == 'string' and tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
if uptime then known = math.min(known, uptime * 1000) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now))
local names = redis.call('ZRANGE', KEYS[1], 0, -1)
local values = {}
for first = 1, #names, 500 do
  local keys = {}
  for i = first, math.min(first + 499, #names) do keys[#keys + 1] = ARGV[1] .. names[i] end
  for _, value in ipairs(redis.call('MGET', unpack(keys))) do values[#values + 1] = value end
end
return {now, known, names, values}
"
);

/// A script and its hash.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        let hash = ::redis::Script::new(text).get_hash().to_owned();
        Self { text, hash }
    }

    /// A call of the script on these keys.
    pub(super) fn on(&self, keys: &[&str]) -> ScriptCall<'_> {
        ScriptCall {
            script: self,
            keys: keys.iter().map(|&key| key.to_owned()).collect(),
            arguments: Vec::new(),
        }
    }
}

/// A script with its keys and arguments.
pub(super) struct ScriptCall<'a> {
    script: &'a Script,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl ScriptCall<'_> {
    pub(super) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        argument.write_redis_args(&mut self.arguments);
        self
    }

    /// By hash: enough for a server that knows the script.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// With its text, which the server then knows.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(self.keys.len());
        command.arg(&self.keys).arg(&self.arguments);
        command
    }
}

#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) heartbeat: Script,
    pub(super) entomb: Script,
    pub(super) list: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            renew: Script::new(RENEW),
            release: Script::new(RELEASE),
            heartbeat: Script::new(HEARTBEAT),
            entomb: Script::new(ENTOMB),
            list: Script::new(LIST),
        }
    }
}
