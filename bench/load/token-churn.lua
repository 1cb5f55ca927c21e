-- Token churn: every refresh token is used once, and every access token that comes of it is shown once, so that the
-- gateway never sees a token again.
--   wrk -t1 -c16 -d30s -s bench/load/token-churn.lua http://127.0.0.1:8500
-- Have more people (`prepare`) than connections. A second run needs a new `prepare`: used tokens are not kept.
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
