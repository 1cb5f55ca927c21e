package org.openapitools.client.infrastructure

import okhttp3.Call

/** In place of the generated one, which is the same for every document and needs OkHttp 4. */
open class ApiClient(val baseUrl: String, val client: Call.Factory) {
    companion object {
        const val BASE_URL_KEY = "org.openapitools.client.baseUrl"
        val defaultClient: Call.Factory = object : Call.Factory {}
    }

    protected inline fun <reified I, reified T> request(requestConfig: RequestConfig<I>): ApiResponse<T?> =
        throw UnsupportedOperationException("${requestConfig.method} $baseUrl${requestConfig.path}")

    protected fun parameterToString(value: Any?): String = value.toString()

    protected inline fun <reified T : Any> parseDateToQueryString(value: T): String = value.toString()
}
