package okhttp3

/** What generated operations name of OkHttp, which the registries of the tests do not have. */
interface Call {
    interface Factory
}

class HttpUrl(val encodedPathSegments: List<String>) {
    class Builder {
        private val segments = mutableListOf<String>()

        fun scheme(scheme: String): Builder = apply { check(scheme == "http") }

        fun host(host: String): Builder = apply { check(host.isNotEmpty()) }

        fun addPathSegment(segment: String): Builder = apply { segments.add(segment) }

        fun build(): HttpUrl = HttpUrl(segments)
    }
}
