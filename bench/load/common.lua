-- Shared code of the scenarios: reads the files of `prepare` and reports the results.

local folder = os.getenv('LOAD_DATA') or 'load-data'
local statuses = {}
local threads = {}

function lines(name)
  local all = {}
  for line in io.lines(folder .. '/' .. name) do all[#all + 1] = line end
  assert(#all > 0, folder .. '/' .. name .. ' is empty: run bench/load/prepare')
  return all
end

function post(path, body, token)
  local headers = {['Content-Type'] = 'application/json'}
  if token then headers['Authorization'] = 'Bearer ' .. token end
  return wrk.format('POST', path, headers, body)
end

function get(path, token)
  return wrk.format('GET', path, {['Authorization'] = 'Bearer ' .. token})
end

-- Counts responses by status; called from `response`.
function count(status)
  statuses[status] = (statuses[status] or 0) + 1
  told = ''
  for known, times in pairs(statuses) do told = told .. known .. '=' .. times .. ' ' end
end

setup = function(thread)
  thread:set('number', #threads)
  threads[#threads + 1] = thread
end

done = function(summary, latency, requests)
  local sums = {}
  for _, thread in ipairs(threads) do
    for status, times in string.gmatch(thread:get('told') or '', '(%d+)=(%d+)') do
      sums[status] = (sums[status] or 0) + tonumber(times)
    end
  end
  io.write('answers by status:')
  for status, times in pairs(sums) do io.write(' ', status, ' ', times) end
  io.write(string.format('\nlatency: p50 %.1f ms, p99 %.1f ms, p99.9 %.1f ms\n',
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency:percentile(99.9) / 1000))
end
