-- The loads of bench/run and bench/compare, for wrk. The environment says what is sent:
--   LOAD_FOLDER   folder with the files `tokens` and `bodies`, one value per line, each used in turn; both are optional
--   LOAD_BODY     a file that is the body of every request, of the type LOAD_TYPE
--   LOAD_METHOD   GET unless given
--   LOAD_REFRESH  if set, `tokens` has refresh tokens: each new access token is used once, at the path of the URL
--   LOAD_COUNT    if set, counts responses by status, which costs a call into Lua for each
local env, threads = os.getenv, {}
local kind, refreshes = env('LOAD_TYPE') or 'application/json', env('LOAD_REFRESH')
local tokens, access, requests, statuses = {}, {}, {}, {}
local sent, first, last = 0, 1, 0

local function lines(name)
  local all, file = {}, io.open(env('LOAD_FOLDER') .. '/' .. name)
  if file then
    for line in file:lines() do all[#all + 1] = line end
    file:close()
  end
  return all
end

local function format(method, path, token, body)
  return wrk.format(method, path, {Authorization = token and 'Bearer ' .. token, ['Content-Type'] = body and kind}, body)
end

setup = function(thread) threads[#threads + 1] = thread end

init = function()
  local bodies = lines('bodies')
  tokens = lines('tokens')
  last = #tokens
  if env('LOAD_BODY') then
    local file = assert(io.open(env('LOAD_BODY'), 'rb'))
    bodies = {file:read('*a')}
    file:close()
  end
  if refreshes then return end
  local function turn(list, at) return #list > 0 and list[(at - 1) % #list + 1] or nil end
  for at = 1, math.max(#tokens, #bodies, 1) do
    requests[at] = format(env('LOAD_METHOD') or 'GET', nil, turn(tokens, at), turn(bodies, at))
  end
end

local function refresh()
  local fresh, token = table.remove(access), tokens[first]
  if fresh then return format('GET', nil, fresh) end
  -- Without a token, all of them are in flight: 401.
  if not token then return format('GET', nil, 'none') end
  tokens[first], first = nil, first + 1
  return format('POST', '/auth/tokens/refresh', nil, '{"refreshToken":"' .. token .. '"}')
end

request = function()
  if refreshes then return refresh() end
  sent = sent % #requests + 1
  return requests[sent]
end

if env('LOAD_COUNT') then
  response = function(status, _, body)
    statuses[status] = (statuses[status] or 0) + 1
    counted = ''
    for known, times in pairs(statuses) do counted = counted .. known .. '=' .. times .. ' ' end
    local token = refreshes and body:match('"refreshToken":"([^"]+)"')
    if token then
      last = last + 1
      tokens[last], access[#access + 1] = token, body:match('"accessToken":"([^"]+)"')
    end
  end
end

done = function(summary, latency)
  local sums, errors, parts = {}, summary.errors, {}
  for _, thread in ipairs(threads) do
    for status, times in (thread:get('counted') or ''):gmatch('(%d+)=(%d+)') do
      sums[status] = (sums[status] or 0) + tonumber(times)
    end
  end
  for status, times in pairs(sums) do parts[#parts + 1] = string.format('"%s":%d', status, times) end
  io.write(string.format('\n{"requests":%d,"seconds":%f,"failed":%d,"p50":%f,"p99":%f,"statuses":{%s}}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, table.concat(parts, ',')))
end
