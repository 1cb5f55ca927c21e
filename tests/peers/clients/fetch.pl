# LWP, which names TE in Connection.
use strict;
use warnings;
use HTTP::Request;
use LWP::UserAgent;

my $agent = LWP::UserAgent->new;
for my $method (qw(GET POST HEAD)) {
    my $request = HTTP::Request->new($method, $ARGV[0]);
    $request->content('hello') if $method eq 'POST';
    print "lwp $method ", $agent->request($request)->code, "\n";
}
