-- Notification burst: LOW as fast as they are accepted. Run by `notification-burst`.
dofile('bench/load/common.lua')
local token = assert(os.getenv('SERVICE_TOKEN'), 'SERVICE_TOKEN is not set')
local body = '{"channel":"email","recipient":{"email":"load@example.com"},"template":"welcome",' ..
  '"variables":{"name":"Load"},"priority":"LOW"}'

request = function() return post('/notifications', body, token) end
response = function(status) count(status) end
