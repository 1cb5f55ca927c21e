-- Token churn: every refresh token is used once, and every access token obtained from it is used once, so that no token
-- is in the gateway's cache.
--   wrk -t1 -c16 -d30s -s bench/load/token-churn.lua http://127.0.0.1:8500
-- Requires more users (`prepare`) than connections. A second run requires a new `prepare`, because its tokens are used.
dofile('bench/load/common.lua')
local refresh, fresh, first, last = lines('refresh-tokens'), {}, 1, 0
last = #refresh

request = function()
  local access = table.remove(fresh)
  if access then return get('/auth/me', access) end
  local token = refresh[first]
  if not token then return get('/auth/me', 'none-left') end
  refresh[first] = nil
  first = first + 1
  return post('/auth/tokens/refresh', '{"refreshToken":"' .. token .. '"}')
end

response = function(status, headers, body)
  count(status)
  local token = string.match(body, '"refreshToken":"([^"]+)"')
  if token then
    last = last + 1
    refresh[last] = token
    fresh[#fresh + 1] = string.match(body, '"accessToken":"([^"]+)"')
  end
end
